// Any bytes as a text file: reading by index, from the front and inflated gives the same lines,
// except those that are not UTF-8; together with their ends they are the file. Read as compressed
// data, reading ends, with any result.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cpp/io/tfrecords.h"
#include "fuzz/reading.h"
#include "penstock/base/text.h"
#include "penstock/io/lines.h"

using namespace penstock;

namespace {

Records by_number(const std::shared_ptr<const RecordFiles>& files) {
  LineReader reader(files);
  Records lines(files->size());
  std::array<uint64_t, RecordReader::kChunk> numbers{};
  for (uint64_t first = 0; first < lines.size(); first += numbers.size()) {
    const auto count = std::min<uint64_t>(numbers.size(), lines.size() - first);
    // Backwards, as an example of another order.
    for (uint64_t i = 0; i < count; ++i) numbers[i] = first + count - 1 - i;
    reader.read(std::span(numbers).first(count));
    for (uint64_t i = 0; i < count; ++i) {
      const std::span<const std::byte> line = reader.payload(i);
      lines[numbers[i]].emplace(reinterpret_cast<const char*>(line.data()), line.size());
    }
    for (const RecordReader::Failure& failure : reader.failures()) {
      REQUIRE(reader.payload(failure.row).empty() && failure.error.code() == Code::kDataLoss);
      lines[numbers[failure.row]].reset();
    }
  }
  return lines;
}

// The lines by a plain implementation.
Records by_the_book(const std::string& text) {
  Records lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t feed = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, feed - begin);
    if (feed < text.size() && line.ends_with('\r')) line.pop_back();
    is_utf8(std::as_bytes(std::span(line))) ? lines.push_back(std::move(line))
                                            : lines.push_back(std::nullopt);
    begin = feed + 1;
  }
  return lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  TFRecords world;
  const std::string text(reinterpret_cast<const char*>(data), size);
  (*world.files)["file"] = text;
  (*world.files)["small"] = compressed(text, Compression::kGzip);

  const Records expected = by_the_book(text);
  const auto files = index_files(world.pool, {"file"}, 1, [](const std::shared_ptr<File>& file) {
    return index_lines(*file);
  });
  uint64_t end = 0;
  for (uint64_t i = 0; i < files->size(); ++i) {
    const RecordIndex::Place place = files->index(0).at(i);
    REQUIRE(place.offset == end && place.bytes > 0 && !place.damaged);
    end += place.bytes;
  }
  REQUIRE(end == size);
  REQUIRE(by_number(files) == expected);

  const auto read = [&](const char* path, Compression compression, size_t most) {
    return from_the_front({world.pool, {path}, {compression}}, "lines", line_framing(), most);
  };
  for (size_t most : {1, 64}) {
    REQUIRE(read("file", Compression::kNone, most) == expected);
    REQUIRE(read("small", Compression::kGzip, most) == expected);
  }
  REQUIRE(read("file", Compression::kGzip, 64) == read("file", Compression::kGzip, 3));
  (void)compression_of_text(*world.files->open("file"));
  return 0;
}
