#include "penstock/io/folder_index.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "penstock/base/byte_reader.h"
#include "penstock/base/error.h"
#include "penstock/io/crc32c.h"
#include "penstock/io/record_index.h"
#include "penstock/io/remote_files.h"

namespace penstock {
namespace {

constexpr uint64_t kFolderMagic = 0x31524944'4b545350;  // "PSTKDIR1"
constexpr size_t kLongestName = 255;
constexpr uint8_t kLinkBit = 4;
// The coarsest step in which file systems record times: FAT's.
constexpr int64_t kTimeStepNs = 2'000'000'000;
using Checksum = uint32_t;

int64_t wall_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Error damaged_folders() {
  return Error(Code::kDataLoss, "index", "the index of the folders is damaged");
}

// Appends the bytes of values to a vector.
class FolderBytes {
 public:
  explicit FolderBytes(std::vector<std::byte>& to) : to_(to) {}
  void put(std::span<const std::byte> bytes) { to_.insert(to_.end(), bytes.begin(), bytes.end()); }
  void put(std::string_view text) { put(std::as_bytes(std::span(text))); }
  template <class T>
  void put_value(const T& value) {
    put(std::as_bytes(std::span(&value, 1)));
  }

 private:
  std::vector<std::byte>& to_;
};

// A name that a folder can list: nothing in an index leads out of its folder.
bool valid_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

// Each name without what it shares with the name before it. nullopt: a name is too long.
std::optional<std::vector<std::byte>> list_of(const std::vector<FileSystem::Entry>& entries) {
  std::vector<std::byte> list;
  FolderBytes out(list);
  std::string_view before;
  for (const FileSystem::Entry& entry : entries) {
    const std::string_view name = entry.name;
    if (name.size() > kLongestName) return {};
    const auto shared = static_cast<size_t>(
        std::mismatch(name.begin(), name.end(), before.begin(), before.end()).first - name.begin());
    out.put_value(static_cast<uint8_t>(static_cast<uint8_t>(entry.kind) |
                                       (entry.link ? kLinkBit : uint8_t{0})));
    out.put_value(static_cast<uint8_t>(shared));
    out.put_value(static_cast<uint8_t>(name.size() - shared));
    out.put(name.substr(shared));
    before = name;
  }
  return list;
}

// Error kDataLoss.
std::vector<FileSystem::Entry> entries_of(std::span<const std::byte> list, uint64_t count) {
  ByteReader in(list, Code::kDataLoss, "index");
  std::vector<FileSystem::Entry> entries;
  entries.reserve(std::min<uint64_t>(count, list.size() / 3));  // an entry has 3 bytes and a name
  std::string name;
  while (in.left() > 0) {
    const auto kind = in.get<uint8_t>();
    const auto shared = in.get<uint8_t>();
    const auto rest = in.get<uint8_t>();
    if ((kind & ~kLinkBit) > static_cast<uint8_t>(FileSystem::Kind::kFolder)) {
      throw damaged_folders();
    }
    if (shared > name.size() || shared + rest > kLongestName) throw damaged_folders();
    const std::span<const std::byte> bytes = in.take(rest);
    const std::string_view more(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (more <= std::string_view(name).substr(shared)) throw damaged_folders();
    name.replace(shared, name.npos, more);
    if (!valid_name(name)) throw damaged_folders();
    entries.push_back(
        {name, static_cast<FileSystem::Kind>(kind & ~kLinkBit), (kind & kLinkBit) != 0});
  }
  if (entries.size() != count) throw damaged_folders();
  return entries;
}

}  // namespace

FolderIndex::FolderIndex(FileSystem& files, const std::string& root) : files_(files) {
  root_ = root.empty() || root.ends_with('/') ? root : root + "/";
  if (is_url(root)) return;
  std::filesystem::path path = root.empty() ? "." : root;
  const std::string last = (path.has_filename() ? path : path.parent_path()).filename();
  // The working directory and its like have their names, and so their index, in another folder.
  if (last == "." || last == "..") path = std::filesystem::absolute(path);
  std::string name = path.lexically_normal();
  while (name.ends_with('/')) name.pop_back();
  if (name.empty()) return;  // "/" lies in no folder
  index_ = name + std::string(kIndexSuffix);
  try {
    read(*files_.open(index_));
  } catch (const Error&) {  // none, unreadable or damaged
    folders_.clear();
  }
}

void FolderIndex::read(File& index) {
  stored_.resize(index.size());
  const File::Segment whole{0, stored_.data(), stored_.size()};
  if (!stored_.empty()) index.read({&whole, 1});
  if (stored_.size() < sizeof(kFolderMagic) + sizeof(Checksum)) throw damaged_folders();
  const auto checked = std::span<const std::byte>(stored_).first(stored_.size() - sizeof(Checksum));
  Checksum crc;
  std::memcpy(&crc, stored_.data() + checked.size(), sizeof(crc));
  if (crc != crc32c(checked)) throw damaged_folders();
  ByteReader in(checked, Code::kDataLoss, "index");
  if (in.get<uint64_t>() != kFolderMagic) throw damaged_folders();
  while (in.left() > 0) {
    const auto length = in.get<uint32_t>();
    std::string name = in.text(length);
    Folder folder;
    folder.modified_ns = in.get<int64_t>();
    folder.entries = in.get<uint64_t>();
    const auto bytes = in.get<uint64_t>();
    if (bytes > in.left()) throw damaged_folders();
    folder.list = in.take(bytes);
    folders_.insert_or_assign(std::move(name), std::move(folder));
  }
}

std::vector<FileSystem::Entry> FolderIndex::entries(const std::string& folder) {
  const std::optional<int64_t> modified = index_.empty() || !folder.starts_with(root_)
                                              ? std::nullopt
                                              : files_.folder_modified_ns(folder);
  std::string name = modified ? folder.substr(root_.size()) : "";
  while (name.ends_with('/')) name.pop_back();
  if (modified) {
    const auto found = folders_.find(name);
    if (found != folders_.end() && found->second.modified_ns == *modified) {
      try {
        std::vector<Entry> entries = entries_of(found->second.list, found->second.entries);
        found->second.current = true;
        return entries;
      } catch (const Error&) {  // list the folder instead
      }
    }
  }
  std::vector<Entry> entries = files_.entries(folder);
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.name < b.name; });
  if (modified) {
    changed_ |= folders_.erase(name) > 0;
    // The next change must give the folder another time.
    if (*modified < wall_clock_ns() - kTimeStepNs &&
        files_.folder_modified_ns(folder) == modified) {
      keep(name, *modified, entries);
    }
  }
  return entries;
}

void FolderIndex::keep(const std::string& name, int64_t modified_ns,
                       const std::vector<Entry>& entries) {
  std::optional<std::vector<std::byte>> list = list_of(entries);
  if (!list) return;
  Folder folder{modified_ns, entries.size(), {}, std::move(*list), true};
  folder.list = folder.made;  // the span stays valid when the vector is moved
  folders_.insert_or_assign(name, std::move(folder));
  changed_ = true;
}

void FolderIndex::store() {
  if (!changed_ || index_.empty()) return;
  std::vector<std::byte> bytes;
  FolderBytes out(bytes);
  out.put_value(kFolderMagic);
  for (const auto& [name, folder] : folders_) {
    // Not asked for this time, and perhaps gone.
    if (!folder.current && files_.folder_modified_ns(root_ + name) != folder.modified_ns) continue;
    out.put_value(static_cast<uint32_t>(name.size()));
    out.put(name);
    out.put_value(folder.modified_ns);
    out.put_value(folder.entries);
    out.put_value(uint64_t{folder.list.size()});
    out.put(folder.list);
  }
  out.put_value(Checksum{crc32c(bytes)});
  try {
    const std::unique_ptr<Sink> sink = files_.create(index_);
    sink->write(bytes);
    sink->commit();
    changed_ = false;
  } catch (const Error&) {  // not stored; the caller has its files anyway
  }
}

}  // namespace penstock
