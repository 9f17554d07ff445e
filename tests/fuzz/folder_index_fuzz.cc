// Any bytes as a stored listing of folders, as they are and with a corrected checksum: it is
// ignored, or lists names that lie in their folder, sorted, which are the same when they are stored
// again.
#include <cstdint>
#include <cstring>
#include <string>

#include "cpp/io/memory_files.h"
#include "fuzz/require.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/folder_index.h"

using namespace penstock;

namespace {

constexpr size_t kHead = 8, kCrc = 4;

// Folders of which any time is the present one.
class AnyTime : public MemoryFiles {
 public:
  std::optional<int64_t> folder_modified_ns(const std::string& folder) override {
    return folder == "root/" ? at_root : 0;
  }
  int64_t at_root = 0;
};

std::vector<FileSystem::Entry> listed(AnyTime& files) {
  FolderIndex index(files, "root");
  auto entries = index.entries("root/");
  std::string before;
  for (const FileSystem::Entry& entry : entries) {
    REQUIRE(entry.name > before && entry.name.find('/') == entry.name.npos);
    REQUIRE(entry.name != "." && entry.name != "..");
    before = entry.name;
    if (entry.kind == FileSystem::Kind::kFolder) index.entries("root/" + entry.name + "/");
  }
  index.entries("root/no/such/");  // listed anew
  index.store();
  return entries;
}

void read(const std::string& bytes) {
  AnyTime files;
  files["root/real"] = "";
  files["root.penstock-index"] = bytes;
  // The time of the first folder, if its path is empty.
  if (bytes.size() >= kHead + 12) {
    std::memcpy(&files.at_root, bytes.data() + kHead + 4, sizeof(files.at_root));
  }
  const auto entries = listed(files);
  const auto again = listed(files);
  REQUIRE(entries.size() == again.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    REQUIRE(entries[i].name == again[i].name && entries[i].kind == again[i].kind);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  if (size < kHead + kCrc) return 0;
  const uint32_t crc = crc32c(std::as_bytes(std::span(bytes)).first(size - kCrc));
  std::memcpy(bytes.data() + size - kCrc, &crc, kCrc);
  read(bytes);
  return 0;
}
