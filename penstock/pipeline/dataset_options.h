#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/io/csv_parser.h"

namespace penstock {

struct TFRecordOptions {
  std::string compression = {};  // "gzip", "zlib", "none" of all files; "": each file tells
  bool stream = false;           // read from the front, with no index; compressed files always are
  // "beside": the index is kept in `<file>.penstock-index`, and only made again if the file was
  // changed since. "": it lives in memory.
  std::string index = {};
};

struct LineOptions {
  std::string compression = {};  // as TFRecordOptions's; a zlib file is not told from text
  bool stream = false;
  std::string index = {};  // as TFRecordOptions's
};

struct CsvOptions {
  std::vector<CsvColumn> columns;       // that are wanted, by name
  std::vector<std::string> names = {};  // of all columns, of files without a header; else none
  char delimiter = ',';
  std::string compression = {};  // as LineOptions's
  bool stream = false;
  std::string index = {};  // as TFRecordOptions's
};

struct FixedRecordOptions {
  uint64_t record_bytes = 0;
  uint64_t header_bytes = 0, footer_bytes = 0;  // of each file, that are no records
  // As TFRecordOptions's; a zlib file is not told from records.
  std::string compression = {};
  bool stream = false;
};

struct IdxOptions {
  // Files of the labels of these rows, as many; none: there are no labels.
  std::vector<std::string> labels = {};
  std::string compression = {};  // as TFRecordOptions's
  bool stream = false;
};

struct CifarOptions {
  std::string compression = {};  // as FixedRecordOptions's
  bool stream = false;
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
  bool drop_last = false;  // leave out a last batch that is not full
};

}  // namespace penstock
