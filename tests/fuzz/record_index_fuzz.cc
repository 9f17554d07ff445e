// Any bytes as a saved index: it is invalid, or has contiguous places up to the file's end, which
// are the same when they are saved again. Once unchanged, once with a corrected checksum.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "cpp/io/memory_files.h"
#include "fuzz/require.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/record_index.h"

using namespace penstock;

namespace {

constexpr size_t kHead = 64, kCrc = 4;

// The file that these bytes refer to.
IndexedFile spoken_of(const std::string& bytes) {
  IndexedFile of;
  if (bytes.size() < kHead) return of;
  of.format = bytes.substr(8, 8);
  std::memcpy(&of.bytes, bytes.data() + 16, sizeof(of.bytes));
  std::memcpy(&of.modified_ns, bytes.data() + 24, sizeof(of.modified_ns));
  std::memcpy(&of.begin, bytes.data() + 32, sizeof(of.begin));
  return of;
}

void read(const std::string& bytes) {
  MemoryFiles files;
  files["kept"] = bytes;
  const IndexedFile of = spoken_of(bytes);
  const auto index = read_index(*files.open("kept"), of);
  if (!index) return;
  REQUIRE(index->file_bytes() == of.bytes && index->size() <= bytes.size());
  uint64_t end = index->size() > 0 ? index->at(0).offset : of.begin;
  REQUIRE(end >= of.begin);
  for (uint64_t i = 0; i < index->size(); ++i) {
    const RecordIndex::Place place = index->at(i);
    REQUIRE(place.offset == end && place.bytes > 0 && place.bytes <= of.bytes - end);
    end += place.bytes;
  }
  REQUIRE(index->size() == 0 || end == of.bytes);

  auto sink = files.create("again");
  write_index(*sink, *index, of);
  sink->commit();
  const auto again = read_index(*files.open("again"), of);
  REQUIRE(again && again->size() == index->size());
  REQUIRE(std::equal(again->damaged().begin(), again->damaged().end(), index->damaged().begin(),
                     index->damaged().end()));
  for (uint64_t i = 0; i < index->size(); ++i) REQUIRE(again->at(i) == index->at(i));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  if (size < kHead + kCrc) return 0;
  // Also with a corrected length field, because most changes alter the length.
  const uint64_t list = size - kHead - kCrc;
  std::memcpy(bytes.data() + kHead - sizeof(list), &list, sizeof(list));
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)).first(size - kCrc));
  std::memcpy(bytes.data() + size - kCrc, &crc, kCrc);
  read(bytes);
  return 0;
}
