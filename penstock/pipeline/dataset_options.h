#pragma once

#include <cstdint>
#include <string>

namespace penstock {

struct TFRecordOptions {
  std::string compression = {};  // "": none; "gzip" and "zlib" are not there yet
};

struct ShuffleOptions {
  uint64_t seed = 0;
  bool reshuffle = true;  // false: every epoch in the same order
};

struct BatchOptions {
  bool drop_remainder = false;  // leave out a last batch that is not full
};

}  // namespace penstock
