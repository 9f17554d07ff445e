#include "penstock/pipeline/plan/found_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

// The format: 8-byte words, and lists. A list is its number of values, then the values, zero-padded
// to a multiple of 8 bytes.
constexpr uint64_t kFoundMagic = 0x31646e75666b7470;  // "ptkfund1"
constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kPiece = 256 << 10;

enum class Entry : uint64_t { kIndexed, kStreamed, kAgain, kListed };

Error from_errno(const char* what) { return Error::from_errno(errno, "Dataset", what); }

class Writing {
 public:
  explicit Writing(int fd) : fd_(fd) {}

  void word(uint64_t word) { append(std::as_bytes(std::span(&word, 1))); }
  template <class T>
  void list(std::span<const T> values) {
    static_assert(alignof(T) <= kWord);
    word(values.size());
    append(std::as_bytes(values));
    buffer_.resize((buffer_.size() + kWord - 1) / kWord * kWord);
  }
  void flush() {
    write_all(buffer_);
    buffer_.clear();
  }

 private:
  void append(std::span<const std::byte> bytes) {
    // Only an incomplete last word has to be buffered.
    if (bytes.size() >= kPiece) {
      flush();
      const size_t whole = bytes.size() / kWord * kWord;
      write_all(bytes.first(whole));
      bytes = bytes.subspan(whole);
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    if (buffer_.size() >= kPiece && buffer_.size() % kWord == 0) flush();
  }

  void write_all(std::span<const std::byte> bytes) {
    // A file size limit is then an error, not a signal.
    os::resize_file(fd_, bytes_ += bytes.size());
    while (!bytes.empty()) {
      const ssize_t done = ::write(fd_, bytes.data(), bytes.size());
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) throw from_errno("memory for what its workers know of files");
      bytes = bytes.subspan(static_cast<size_t>(done));
    }
  }

  const int fd_;
  uint64_t bytes_ = 0;
  std::vector<std::byte> buffer_;
};

// A mapping of the written file; lives as long as its users.
class Mapped {
 public:
  explicit Mapped(int fd) {
    struct stat about {};
    if (fstat(fd, &about) != 0) throw from_errno("what its workers know of files");
    bytes_ = static_cast<size_t>(about.st_size);
    data_ = bytes_ == 0 ? nullptr : os::reserve_mapping(fd, bytes_, true);
    if (bytes_ != 0 && data_ == nullptr) throw from_errno("mapping what its workers know of files");
  }
  ~Mapped() {
    if (data_ != nullptr) os::unmap(data_, bytes_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), bytes_};
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Reading {
 public:
  explicit Reading(std::span<const std::byte> bytes) : left_(bytes) {}

  bool ended() const { return left_.empty(); }
  uint64_t word() { return *reinterpret_cast<const uint64_t*>(take(kWord).data()); }
  template <class T>
  std::span<const T> list() {
    const uint64_t count = word();
    if (count > left_.size() / sizeof(T)) refuse();
    const auto bytes = take((count * sizeof(T) + kWord - 1) / kWord * kWord);
    return {reinterpret_cast<const T*>(bytes.data()), count};
  }
  // A count of items that take at least one word each.
  uint64_t count() {
    const uint64_t count = word();
    if (count > left_.size() / kWord) refuse();
    return count;
  }
  std::string text() {
    const auto bytes = list<char>();
    return {bytes.begin(), bytes.end()};
  }
  [[noreturn]] static void refuse() {
    throw Error(Code::kInvalidArgument, "Dataset", "what was found is another plan's");
  }

 private:
  std::span<const std::byte> take(size_t bytes) {
    if (bytes > left_.size()) refuse();
    const auto taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }

  std::span<const std::byte> left_;
};

void write_index(Writing& out, const RecordIndex& index) {
  const RecordIndex::Parts& parts = index.parts();
  for (uint64_t word : {parts.size, parts.end, parts.first, parts.step}) out.word(word);
  out.list(parts.groups);
  out.list(parts.relative);
  out.list(parts.wide);
  out.list(parts.damaged);
}

RecordIndex read_index(Reading& in, std::shared_ptr<const Mapped> mapped) {
  RecordIndex::Parts parts;
  for (uint64_t* word : {&parts.size, &parts.end, &parts.first, &parts.step}) *word = in.word();
  parts.groups = in.list<uint64_t>();
  parts.relative = in.list<uint32_t>();
  parts.wide = in.list<uint64_t>();
  parts.damaged = in.list<uint64_t>();
  return {parts, std::move(mapped)};
}

void write_files(Writing& out, const RecordFiles& files) {
  out.word(files.files());
  for (size_t i = 0; i < files.files(); ++i) {
    out.list(std::span<const char>(files.path(i)));
    const File::Identity identity = files.pool().identity(files.number(i));
    out.word(identity.device);
    out.word(identity.inode);
    write_index(out, files.index(i));
  }
}

std::shared_ptr<const RecordFiles> read_files(Reading& in, const std::shared_ptr<FilePool>& pool,
                                              const std::shared_ptr<const Mapped>& mapped) {
  std::vector<std::string> paths(in.count());
  std::vector<RecordIndex> indices(paths.size());
  for (size_t i = 0; i < paths.size(); ++i) {
    paths[i] = in.text();
    const uint64_t device = in.word();
    pool->add(paths[i], {device, in.word()});
    indices[i] = read_index(in, mapped);
  }
  return std::make_shared<RecordFiles>(pool, std::move(paths), std::move(indices));
}

void write_files(Writing& out, const StreamFiles& files) {
  out.word(files.paths.size());
  for (const std::string& path : files.paths) out.list(std::span<const char>(path));
  out.list(std::span<const Compression>(files.compressions));
  out.list(std::span<const uint64_t>(files.header_bytes));
}

std::shared_ptr<const StreamFiles> read_stream(Reading& in, const std::shared_ptr<FilePool>& pool) {
  auto files = std::make_shared<StreamFiles>(StreamFiles{pool, {}, {}});
  files->paths.resize(in.count());
  for (std::string& path : files->paths) path = in.text();
  const auto compressions = in.list<Compression>();
  files->compressions.assign(compressions.begin(), compressions.end());
  const auto fronts = in.list<uint64_t>();
  files->header_bytes.assign(fronts.begin(), fronts.end());
  return files;
}

void write_entry(Writing& out, const FoundFiles& found) {
  if (found.indexed != nullptr) {
    out.word(static_cast<uint64_t>(Entry::kIndexed));
    write_files(out, *found.indexed);
  } else if (found.listed != nullptr) {
    out.word(static_cast<uint64_t>(Entry::kListed));
    const FileListing::Parts& parts = found.listed->parts();
    out.list(parts.paths);
    out.list(parts.ends);
    out.list(parts.labels);
  } else {
    out.word(static_cast<uint64_t>(Entry::kStreamed));
    write_files(out, *found.streamed);
  }
  out.list(std::span<const int64_t>(found.about));
}

}  // namespace

os::Fd write_found_files(std::span<const FoundFilesRef> found) {
  os::Fd fd = os::memory_file("penstock-files");
  Writing out(fd.get());
  out.word(kFoundMagic);
  out.word(found.size());
  std::unordered_map<const FoundFiles*, size_t> written;
  for (size_t i = 0; i < found.size(); ++i) {
    const auto [first, is_new] = written.try_emplace(found[i].get(), i);
    if (is_new) {
      write_entry(out, *found[i]);
      continue;
    }
    out.word(static_cast<uint64_t>(Entry::kAgain));
    out.word(first->second);
  }
  out.flush();
  os::forbid_shrinking(fd.get());
  return fd;
}

std::vector<FoundFilesRef> read_found_files(const os::Fd& written,
                                            const std::shared_ptr<FilePool>& pool) {
  const auto mapped = std::make_shared<const Mapped>(written.get());
  Reading in(mapped->bytes());
  if (in.word() != kFoundMagic) Reading::refuse();
  std::vector<FoundFilesRef> all(in.count());
  for (size_t i = 0; i < all.size(); ++i) {
    const auto entry = static_cast<Entry>(in.word());
    if (entry == Entry::kAgain) {
      const uint64_t first = in.word();
      if (first >= i) Reading::refuse();
      all[i] = all[first];
      continue;
    }
    FoundFiles found;
    if (entry == Entry::kIndexed) {
      found.indexed = read_files(in, pool, mapped);
    } else if (entry == Entry::kListed) {
      FileListing::Parts parts;
      parts.paths = in.list<char>();
      parts.ends = in.list<uint64_t>();
      parts.labels = in.list<int64_t>();
      found.listed = std::make_shared<FileListing>(parts, mapped);
    } else {
      found.streamed = read_stream(in, pool);
    }
    const auto about = in.list<int64_t>();
    found.about.assign(about.begin(), about.end());
    all[i] = std::make_shared<const FoundFiles>(std::move(found));
  }
  if (!in.ended()) Reading::refuse();
  return all;
}

}  // namespace penstock
