// Any bytes as a text file: from an index, from the front and inflated the same lines come, and
// with their ends they are the file. As if it were compressed, whatever comes, it ends.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cpp/io/tfrecords.h"
#include "fuzz/reading.h"
#include "penstock/io/lines.h"

using namespace penstock;

namespace {

std::vector<std::string> by_number(const std::shared_ptr<const RecordFiles>& files) {
  LineReader reader(files);
  std::vector<std::string> lines(files->size());
  std::array<uint64_t, RecordReader::kChunk> numbers{};
  for (uint64_t first = 0; first < lines.size(); first += numbers.size()) {
    const auto count = std::min<uint64_t>(numbers.size(), lines.size() - first);
    // Backwards, for any order will do.
    for (uint64_t i = 0; i < count; ++i) numbers[i] = first + count - 1 - i;
    reader.read(std::span(numbers).first(count));
    REQUIRE(reader.failures().empty());
    for (uint64_t i = 0; i < count; ++i) {
      const std::span<const std::byte> line = reader.line(i);
      lines[numbers[i]].assign(reinterpret_cast<const char*>(line.data()), line.size());
    }
  }
  return lines;
}

// The same by the definition.
std::vector<std::string> by_the_book(std::string text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t feed = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, feed - begin);
    if (feed < text.size() && line.ends_with('\r')) line.pop_back();
    lines.push_back(std::move(line));
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

  const std::vector<std::string> expected = by_the_book(text);
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
    REQUIRE(read("file", Compression::kNone, most) == (FromTheFront{expected}));
    REQUIRE(read("small", Compression::kGzip, most) == (FromTheFront{expected}));
  }
  REQUIRE(read("file", Compression::kGzip, 64) == read("file", Compression::kGzip, 3));
  (void)compression_of_text(*world.files->open("file"));
  return 0;
}
