#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/io/compression.h"
#include "penstock/io/file.h"
#include "penstock/io/framing.h"
#include "penstock/io/record_index.h"
#include "penstock/memory/dtype.h"

namespace penstock {

// Parses a number, with spaces around it, into `to`. An integer may have a sign. A float is
// anything that std::from_chars accepts (1.5e3, nan, inf); underflow gives 0. A bool is 1, 0, true,
// false, True, False, TRUE or FALSE. False: not a number of this dtype, or out of its range.
bool read_number(std::string_view text, DType dtype, std::byte* to);

// True if read_number() supports the dtype.
bool is_csv_number(DType dtype);

// A column to read from a CSV file.
struct CsvColumn {
  enum class Kind : uint8_t { kNumber, kText, kBytes };
  std::string name;
  Kind kind = Kind::kNumber;
  DType dtype = DType::kInt64;  // of numbers: bool, an integer, float32 or float64
  // The value of an empty field. nullopt: an empty number is an error.
  std::optional<std::string> fallback = {};
};

struct CsvFormat {
  std::vector<CsvColumn> columns;
  std::vector<std::string> names = {};  // of all columns, if the files have no header; else empty
  char delimiter = ',';
};

// Where a file's columns are.
struct CsvHeader {
  uint64_t bytes = 0;           // before the file's first record: a byte order mark, the header
  std::vector<int32_t> wanted;  // by column: its place in CsvFormat::columns, or -1
};

// Reads a file's header. Error kInvalidArgument if a wanted column is missing or occurs twice; the
// text names the file, the column and the columns that exist. kDataLoss, kSystem. Any thread.
CsvHeader read_csv_header(const std::shared_ptr<File>& file, Compression compression,
                          const CsvFormat& format);

// Parses the wanted columns of records. One thread.
class CsvParser {
 public:
  // A column's value: a number is written to `row`; other values are views in `text`.
  struct Value {
    std::byte* row = nullptr;
    std::string_view text = {};
  };

  // `memory`: allocates space for a field with doubled quotes; it must stay valid as long as the
  // values are used. Error kInvalidArgument: no columns, a repeated name, an unsupported dtype, or
  // a fallback that does not parse.
  CsvParser(std::shared_ptr<const CsvFormat> format, std::function<std::byte*(size_t)> memory);

  // `record`: with its line end and any empty lines after it. `values`: one for each wanted column.
  // False: the record is invalid, and failure() says why.
  bool parse(std::span<const std::byte> record, const CsvHeader& header, std::span<Value> values);
  const std::string& failure() const { return failure_; }

 private:
  bool give(const CsvColumn& column, size_t place, std::string_view field, bool quoted,
            Value& value);
  bool refuse(const std::string& why);
  bool wrong_count(size_t columns, size_t wanted);

  const std::shared_ptr<const CsvFormat> format_;
  const std::function<std::byte*(size_t)> memory_;
  std::string failure_;
};

// Finds the ends of records in a CSV file (RFC 4180): line ends (LF, or CR LF) outside quotes. A
// field is quoted if it begins with '"'; elsewhere a quote is an ordinary character. One thread.
class CsvScan {
 public:
  explicit CsvScan(char delimiter) : delimiter_(delimiter) {}

  // `bytes` follow those of the previous call. Returns how many of them belong to the current
  // record, its line end included; the next call is then about the next record. nullopt: the record
  // does not end in these bytes.
  std::optional<size_t> end_in(std::span<const std::byte> bytes);

 private:
  enum class At : uint8_t { kFieldStart, kField, kQuotes, kQuoteInQuotes };

  char delimiter_;
  At at_ = At::kFieldStart;
};

// The number of bytes at the front that are empty lines, which are not records.
size_t empty_lines(std::span<const std::byte> bytes);

// Indexes the records of a CSV file from byte `begin` on, in one pass. Empty lines belong to the
// record before them. Uses 256 KiB of memory besides the index. Error kDataLoss if the file becomes
// shorter meanwhile, kSystem, kClosed. Any thread.
RecordIndex index_csv(File& file, char delimiter, uint64_t begin, Progress* progress = nullptr);

// The same records for reading a file from the front.
std::unique_ptr<Framing> csv_framing(char delimiter);

}  // namespace penstock
