#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/io/csv_parser.h"
#include "penstock/io/file.h"
#include "penstock/memory/example.h"
#include "penstock/pipeline/element/padding.h"

namespace penstock {

struct TFRecordOptions {
  std::string compression = {};  // "gzip", "zlib" or "none" for all files; "": detected per file
  bool stream = false;           // read in order, without an index; always so for compressed files
  // "beside": the index is stored in `<file>.penstock-index`, and only rebuilt if the file changed.
  // "": the index is in memory.
  std::string index = {};
};

struct LineOptions {
  std::string compression = {};  // as in TFRecordOptions; zlib cannot be detected
  bool stream = false;
  std::string index = {};  // as TFRecordOptions's
};

struct CsvOptions {
  std::vector<CsvColumn> columns;       // columns to read, by name
  std::vector<std::string> names = {};  // all columns, for files without a header; else empty
  char delimiter = ',';
  std::string compression = {};  // as in LineOptions
  bool stream = false;
  std::string index = {};  // as in TFRecordOptions
};

struct FixedRecordOptions {
  uint64_t record_bytes = 0;
  uint64_t header_bytes = 0, footer_bytes = 0;  // bytes of each file that are not records
  // As in TFRecordOptions; zlib cannot be detected.
  std::string compression = {};
  bool stream = false;
};

struct IdxOptions {
  // Label files for these rows, as many as paths; empty: no labels.
  std::vector<std::string> labels = {};
  std::string compression = {};  // as in TFRecordOptions
  bool stream = false;
};

struct Hdf5Options {
  uint64_t cache_bytes = 256 << 20;  // of decoded chunks that are kept for further rows
  // Of the file in which the chunks were located; another file of that name is an error.
  File::Identity identity = {};
  std::string nest = {};  // ElementSpec::nest() of the elements
};

struct CifarOptions {
  std::string compression = {};  // as in FixedRecordOptions
  bool stream = false;
};

// Rows of an array that lies in a file whose header the caller has read.
struct FileRowsOptions {
  DType dtype = DType::kUint8;
  Shape shape;  // of a row; no axis is 0
  uint64_t rows = 0;
  bool reversed = false;            // the values have the other byte order
  uint64_t header = 0, offset = 0;  // where the array's header and its first row begin
  uint32_t header_crc = 0;          // CRC-32C of the bytes between
  uint64_t file_bytes = 0;
  std::string name = {};  // of the array, if the file has several
};

struct TarOptions {
  std::vector<std::string> fields = {};  // extensions, in lower case; none: the first sample's
  std::string compression = {};          // as LineOptions's
  bool stream = false;
  std::string index = {};  // as TFRecordOptions's
};

struct ImageFolderOptions {
  // Names of folders, in the order of their labels; none: all folders, sorted.
  std::vector<std::string> classes = {};
  // This part of each class's files, chosen by the seed, is the subset "validation", and the others
  // are "training"; nothing: all files.
  std::optional<double> validation_split = {};
  std::string subset = {};
  uint64_t seed = 0;
  std::string include = {};   // a pattern of files' names; "": those of formats that are decoded
  bool follow_links = false;  // to folders; links to files always are
  // "beside": what the folders list is stored in `<root>.penstock-index`, and only folders that
  // changed are listed again.
  std::string index = {};
};

struct ArrowOptions {
  // Columns to read, in this order; "a/b" is the field b of the struct a. Empty: all.
  std::vector<std::string> columns = {};
  // Replacements of nulls by leaf ("a/b" in a struct), in the dtype and shape of the leaf. Strings
  // and bytes: uint8 of shape {bytes}. Lists of varying length: one item; null lists become empty.
  Example fills = {};
  // int64 row numbers, of shape {elements}: element i is that row. Not defined: all rows in order.
  Tensor rows = {};
};

struct ShuffleOptions {
  uint64_t seed = 0;
  bool reshuffle = true;  // false: the same order in every epoch
  // Not 0: each element is drawn from a buffer of this many elements (required for streams).
  uint64_t buffer = 0;
};

struct ShuffleBlocksOptions {
  // The blocks that the source reads as a whole: row groups of Parquet, chunks of HDF5.
  static constexpr uint64_t kStored = UINT64_MAX;
  uint64_t seed = 0;
  uint64_t block = 1;     // consecutive elements that stay near each other, or kStored
  uint64_t window = 1;    // blocks whose elements are mixed
  bool reshuffle = true;  // false: every epoch has the order of epoch 0
};

enum class OnError {
  kRaise,    // the exception reaches the consumer at its place
  kSkip,     // the sample (or the item that is a whole batch) is left out and counted
  kReplace,  // another sample of the same epoch takes its place, and the loss is counted
};

// The handling of elements that cannot be distributed evenly.
enum class Remainder : uint8_t {
  kKeep,  // the first ranks have one more
  kDrop,  // these elements are dropped
  kPad,   // ranks are padded from the start: positions modulo the length
};

struct InterleaveOptions {
  uint64_t cycle = 4;  // plans that are open at the same time
  uint64_t block = 1;  // consecutive elements of each plan
};

struct SampleOptions {
  std::vector<double> weights = {};  // empty: equal weights
  uint64_t seed = 0;
  bool stop_on_empty = false;  // ends as soon as one input has ended; else when all have
};

struct BatchOptions {
  bool drop_last = false;  // drop a last batch that is not full
};

struct BucketByLengthOptions {
  std::string field;                  // its first axis is the length
  std::vector<uint64_t> boundaries;   // ascending
  std::vector<uint64_t> batch_sizes;  // per bucket: one more than boundaries
  bool drop_last = false;
  std::vector<Padding::Field> padding = {};  // as in padded_batch
};

struct WindowOptions {
  uint64_t size = 1;
  uint64_t shift = 0;   // distance between the first elements of successive windows; 0: size
  uint64_t stride = 1;  // distance between successive elements of a window
  bool drop_last = false;
};

// Returns a generator's next element; nothing: the end. An exception ends the stream at this place.
// Called by one thread at a time. The memory of returned tensors must not change while there are
// views of it: return copies of a buffer that is reused.
using Pull = std::function<std::optional<Example>()>;

// Returns the next carry and a result for a scan's carry and element. The arguments are read-only
// views, valid until it returns; the results may contain them. Called by one thread at a time. An
// exception is the element's failure, and the carry stays.
using Scanning =
    std::function<std::pair<Example, Example>(const Example& carry, const Example& element)>;

}  // namespace penstock
