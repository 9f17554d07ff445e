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

// A column that is wanted of a CSV file.
struct CsvColumn {
  enum class Kind : uint8_t { kNumber, kText, kBytes };
  std::string name;
  Kind kind = Kind::kNumber;
  DType dtype = DType::kInt64;  // of numbers: bool, an integer, float32 or float64
  // What an empty field stands for. Nothing: of a number that is an error.
  std::optional<std::string> fallback = {};
};

struct CsvFormat {
  std::vector<CsvColumn> columns;
  std::vector<std::string> names = {};  // of all columns, of files without a header; else none
  char delimiter = ',';
};

// Which of a file's columns are wanted.
struct CsvHeader {
  uint64_t bytes = 0;  // in front of the file's first record: a byte order mark, the header
  std::vector<int32_t> wanted;  // by column: its place in CsvFormat::columns, or -1
};

// Reads a file's header. Error kInvalidArgument, which names the file, what it lacks and what it
// has: it has no such column, or two of them. kDataLoss, kSystem. Any thread.
CsvHeader read_csv_header(const std::shared_ptr<File>& file, Compression compression,
                          const CsvFormat& format);

// Takes the wanted columns out of records. One thread.
class CsvParser {
 public:
  // A column's value: numbers are written to `row`, of the rest it is said where they are.
  struct Value {
    std::byte* row = nullptr;
    std::string_view text = {};
  };

  // `memory`: room for a field whose quotes were doubled, which lasts as long as the values are
  // used. Error kInvalidArgument: no columns, two of one name, dtypes that are no numbers, a
  // fallback that is none.
  CsvParser(std::shared_ptr<const CsvFormat> format, std::function<std::byte*(size_t)> memory);

  // `record`: with its end, and empty lines behind it. One value for each wanted column. False: the
  // record is lost, and failure() says why.
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
