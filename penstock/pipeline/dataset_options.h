#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

struct TFRecordOptions {
  std::string compression = {};  // "": none; "gzip" and "zlib" are not there yet
};

struct LineOptions {
  std::string compression = {};  // as TFRecordOptions's
};

struct FixedRecordOptions {
  uint64_t record_bytes = 0;
  uint64_t header_bytes = 0, footer_bytes = 0;  // of each file, that are no records
  std::string compression = {};                 // as TFRecordOptions's
};

struct ShuffleOptions {
  uint64_t seed = 0;
  bool reshuffle = true;  // false: every epoch in the same order
  uint64_t buffer = 0;    // not 0: one is drawn from so many elements at a time, as streams need it
};

struct InterleaveOptions {
  uint64_t cycle = 4;  // plans that are open at a time
  uint64_t block = 1;  // elements that each gives in turn
};

struct SampleOptions {
  std::vector<double> weights = {};  // none: all are equal
  uint64_t seed = 0;
  bool stop_on_empty = false;  // over as soon as one input is; else as soon as all are
};

struct BatchOptions {
  bool drop_remainder = false;  // leave out a last batch that is not full
};

}  // namespace penstock
