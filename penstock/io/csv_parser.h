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

}  // namespace penstock
