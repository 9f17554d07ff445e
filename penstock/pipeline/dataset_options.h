#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/io/csv_parser.h"
#include "penstock/memory/example.h"
#include "penstock/pipeline/element/padding.h"

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

struct ImageFolderOptions {
  // Names of folders, in the order of their labels; none: all folders, sorted.
  std::vector<std::string> classes = {};
  // This part of each class's files, chosen by the seed, is the subset "validation", and the others
  // "training"; nothing: all files.
  std::optional<double> validation_split = {};
  std::string subset = {};
  uint64_t seed = 0;
  std::string include = {};   // a pattern of files' names; "": those of formats that are decoded
  bool follow_links = false;  // to folders; links to files always are
};

struct ShuffleOptions {
  uint64_t seed = 0;
  bool reshuffle = true;  // false: every epoch in the same order
  uint64_t buffer = 0;    // not 0: one is drawn from so many elements at a time, as streams need it
};

struct ShuffleBlocksOptions {
  uint64_t seed = 0;
  uint64_t block = 1;     // consecutive elements that stay near each other
  uint64_t window = 1;    // blocks whose elements are mixed
  bool reshuffle = true;  // false: every epoch has the order of epoch 0
};

// What becomes of the elements that cannot be dealt out evenly.
enum class Remainder : uint8_t {
  kKeep,  // the first ranks have one more
  kDrop,  // nobody has them
  kPad,   // the others begin again at the front: positions modulo the length
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

struct BucketByLengthOptions {
  std::string field;                  // whose first axis is the length
  std::vector<uint64_t> boundaries;   // ascending
  std::vector<uint64_t> batch_sizes;  // of each bucket, one more than boundaries
  bool drop_last = false;
  std::vector<Padding::Field> padding = {};  // as of padded_batch
};

struct WindowOptions {
  uint64_t size = 1;
  uint64_t shift = 0;   // from a window's first element to the next one's; 0: size
  uint64_t stride = 1;  // from an element to the next within a window
  bool drop_last = false;
};

// A generator's next element; nothing: it is over. An exception ends the stream at this place. It
// is called by one thread at a time. Buffers that its tensors are views of must not change while
// there are such views: give copies of a buffer that is used again.
using Pull = std::function<std::optional<Example>()>;

// Makes of a scan's carry and an element the next carry and another element. Both are given as
// read-only views that are good until it returns; its results may hand them on. It is called by one
// thread at a time. An exception is the element's failure, and the carry stays.
using Scanning =
    std::function<std::pair<Example, Example>(const Example& carry, const Example& element)>;

}  // namespace penstock
