// Any bytes as a CSV file: reading by index, from the front and inflated gives the same records,
// which cover the file except empty lines. Each record is parsed or is an error.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpp/io/tfrecords.h"
#include "fuzz/reading.h"
#include "penstock/io/csv_parser.h"

using namespace penstock;

namespace {

std::vector<CsvColumn> columns_named(const std::vector<std::string>& names) {
  return {{names[0], CsvColumn::Kind::kText},
          {names[1]},
          {names[2], CsvColumn::Kind::kNumber, DType::kFloat32, "1"}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TFRecords world;
  const std::string text(reinterpret_cast<const char*>(data), size);
  (*world.files)["file"] = text;
  (*world.files)["small"] = compressed(text, Compression::kGzip);

  const RecordIndex index = index_csv(*world.files->open("file"), ',', 0);
  Records records;
  for (uint64_t i = 0; i < index.size(); ++i) {
    const RecordIndex::Place place = index.at(i);
    std::string record = text.substr(place.offset, place.bytes);
    // Without the empty lines after it.
    CsvScan scan(',');
    record.resize(scan.end_in(std::as_bytes(std::span(record))).value_or(record.size()));
    REQUIRE(!record.empty() && empty_lines(std::as_bytes(std::span(record))) == 0);
    const std::string behind =
        text.substr(place.offset + record.size(), place.bytes - record.size());
    REQUIRE(empty_lines(std::as_bytes(std::span(behind))) == behind.size());
    records.push_back(std::move(record));
  }
  const auto read = [&](const char* path, Compression compression, size_t most) {
    return from_the_front({world.pool, {path}, {compression}}, "csv", csv_framing(','), most);
  };
  for (size_t most : {1, 64}) {
    REQUIRE(read("file", Compression::kNone, most) == records);
    REQUIRE(read("small", Compression::kGzip, most) == records);
  }

  auto format = std::make_shared<CsvFormat>();
  format->names = {"a", "b", "c"};
  format->columns = columns_named(format->names);
  std::vector<std::vector<std::byte>> memory;
  CsvParser parser(format, [&](size_t bytes) { return memory.emplace_back(bytes).data(); });
  const CsvHeader header{0, {0, 1, 2}};
  for (const auto& each : records) {
    const std::string& record = *each;
    int64_t number = 0;
    float x = 0;
    CsvParser::Value values[] = {
        {}, {reinterpret_cast<std::byte*>(&number)}, {reinterpret_cast<std::byte*>(&x)}};
    // A separate copy, so that a read beyond its end is detected.
    const std::vector<std::byte> bytes(
        reinterpret_cast<const std::byte*>(record.data()),
        reinterpret_cast<const std::byte*>(record.data()) + record.size());
    if (parser.parse(bytes, header, values)) {
      REQUIRE(values[0].text.size() <= record.size());
    } else {
      REQUIRE(!parser.failure().empty());
    }
  }

  // A header that has the declared columns, or lacks some.
  CsvFormat named;
  named.columns = columns_named(format->names);
  try {
    const CsvHeader found = read_csv_header(world.files->open("file"), Compression::kNone, named);
    REQUIRE(found.bytes <= size);
  } catch (const Error& error) {
    REQUIRE(error.code() == Code::kInvalidArgument || error.code() == Code::kDataLoss);
  }
  return 0;
}
