#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <mutex>
#include <string_view>
#include <system_error>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/io/file.h"
#include "penstock/io/remote_files.h"

namespace penstock {

namespace {

// A new name each time. The name may still exist, made by a process with the same pid on another
// machine or earlier.
std::string hidden_beside(const std::string& path) {
  static std::atomic<uint64_t> count{0};
  const size_t name = path.rfind('/') + 1;  // npos + 1 is 0
  return path.substr(0, name) + "." + path.substr(name) + "." + std::to_string(getpid()) + "-" +
         std::to_string(count.fetch_add(1, std::memory_order_relaxed)) + ".part";
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  const os::FileSizeSignalBlocker hold;
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno != EINTR) throw Error::from_errno(errno, "write", path);
    if (done > 0) bytes = bytes.subspan(static_cast<size_t>(done));
  }
}

class AtomicPosixSink final : public Sink {
 public:
  explicit AtomicPosixSink(const std::string& path) : path_(path) {
    const size_t name = path.rfind('/') + 1;  // npos + 1 is 0
    fd_ = os::unnamed_file(name == 0 ? "." : path.substr(0, name).c_str());
    if (fd_) return;
    do {
      hidden_ = hidden_beside(path);
      fd_.reset(open(hidden_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (fd_) return;
    } while (errno == EEXIST);
    if (errno == ENOENT || errno == ENOTDIR) {
      throw Error(Code::kNotFound, "create", "there is no folder for " + path);
    }
    throw Error::from_errno(errno, "create", path);
  }

  ~AtomicPosixSink() override {
    if (fd_ && !hidden_.empty()) unlink(hidden_.c_str());
  }

  void write(std::span<const std::byte> bytes) override { write_all(fd_.get(), bytes, path_); }

  void commit() override {
    if (fsync(fd_.get()) != 0 || !publish()) throw Error::from_errno(errno, "write", path_);
    fd_.reset();
    const size_t name = path_.rfind('/') + 1;  // npos + 1 is 0
    sync_posix_folder(name == 0 ? "." : path_.substr(0, name), "write");
  }

 private:
  // Gives the file its name. False, and errno, on failure.
  bool publish() {
    if (hidden_.empty()) {
      if (os::name_file(fd_.get(), path_.c_str())) return true;
      if (errno != EEXIST) return false;
      // linkat() does not replace an existing name, so take a hidden name first and rename it.
      std::string hidden;
      do {
        hidden = hidden_beside(path_);
        if (os::name_file(fd_.get(), hidden.c_str())) hidden_ = hidden;
      } while (hidden_.empty() && errno == EEXIST);
      if (hidden_.empty()) return false;
    }
    return rename(hidden_.c_str(), path_.c_str()) == 0;
  }

  const std::string path_;
  std::string hidden_;  // empty: the file is unnamed
  os::Fd fd_;
};

// Writes to a device or a pipe directly: there is no file to replace.
class DirectSink final : public Sink {
 public:
  explicit DirectSink(const std::string& path) : path_(path) {
    // O_NONBLOCK: a pipe without a reader is an error (ENXIO) instead of a wait.
    fd_.reset(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (!fd_) throw Error::from_errno(errno, "create", path);
    const int flags = fcntl(fd_.get(), F_GETFL);
    if (flags < 0 || fcntl(fd_.get(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
      throw Error::from_errno(errno, "create", path);
    }
  }

  void write(std::span<const std::byte> bytes) override { write_all(fd_.get(), bytes, path_); }
  void commit() override { fd_.reset(); }

 private:
  const std::string path_;
  os::Fd fd_;
};

}  // namespace

void sync_posix_folder(const std::string& folder, const char* operation) {
  const os::Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd && fsync(fd.get()) == 0) return;
  // Not permitted, or not supported by the file system.
  if (errno == EACCES || errno == EPERM || errno == EINVAL || errno == ENOTSUP) return;
  throw Error::from_errno(errno, operation, "cannot flush the folder " + folder);
}

std::string resolve_links(std::string path) {
  constexpr int kMaxLinks = 40;  // Linux's own limit
  for (int n = 0; n < kMaxLinks; ++n) {
    std::error_code none;
    const std::filesystem::path target = std::filesystem::read_symlink(path, none);
    if (none) return path;
    path = (std::filesystem::path(path).parent_path() / target).string();
  }
  throw Error::from_errno(ELOOP, "create", path);
}

std::unique_ptr<Sink> create_posix_sink(const std::string& path) {
  struct stat there {};
  if (stat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode)) {
    return std::make_unique<AtomicPosixSink>(resolve_links(path));
  }
  if (S_ISCHR(there.st_mode) || S_ISFIFO(there.st_mode)) return std::make_unique<DirectSink>(path);
  throw Error(Code::kInvalidArgument, "create",
              path + " is a folder, a disk or a socket: give the name of a file");
}

std::vector<std::string> list_posix_folder(const std::string& folder) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> open_folder(opendir(folder.c_str()), closedir);
  if (open_folder == nullptr) return names;
  while (const dirent* entry = readdir(open_folder.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

namespace {

// A mapping of a whole file. Any thread.
class FileMapping {
 public:
  FileMapping() = default;
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping() {
    if (data_ == nullptr) return;
    munmap(data_, bytes_);
    all_.fetch_sub(bytes_, std::memory_order_relaxed);
  }

  void map(int fd) noexcept {
    struct stat found {};
    if (fstat(fd, &found) != 0 || found.st_size <= 0) return;
    const auto bytes = static_cast<uint64_t>(found.st_size);
    // Do not map files larger than the memory: they are read from disk anyway, and page tables cost
    // memory.
    static const uint64_t most = os::memory_limit();
    if (all_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= most) {
      void* mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
      if (mapped != MAP_FAILED) {
        (void)madvise(mapped, bytes, MADV_RANDOM);  // no read-ahead around a missing page
        data_ = mapped;
        bytes_ = bytes;
        return;
      }
    }
    all_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  const std::byte* data() const { return static_cast<const std::byte*>(data_); }
  uint64_t bytes() const { return bytes_; }

 private:
  static inline std::atomic<uint64_t> all_{0};  // mapped bytes of this process
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

int64_t modified_ns_of(const struct stat& found) {
  return int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec;
}

class PosixFile final : public TimestampedFile {
 public:
  PosixFile(std::string path, os::Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  const std::string& path() const override { return path_; }

  uint64_t size() override { return static_cast<uint64_t>(look().st_size); }
  Identity identity() override {
    const struct stat found = look();
    return {static_cast<uint64_t>(found.st_dev), static_cast<uint64_t>(found.st_ino)};
  }

  int64_t modified_ns() override { return modified_ns_of(look()); }

  void read(std::span<const Segment> segments) override {
    std::array<std::byte, kGap> skipped;
    std::array<iovec, kPieces> pieces;
    while (!segments.empty()) {
      const uint64_t begin = segments.front().offset;
      uint64_t end = begin;
      size_t count = 0, taken = 0;
      auto add = [&](std::byte* to, uint64_t bytes) {
        if (count > 0) {
          iovec& last = pieces[count - 1];
          if (static_cast<std::byte*>(last.iov_base) + last.iov_len == to) {
            last.iov_len += bytes;
            return;
          }
        }
        pieces[count++] = {to, bytes};
      };
      for (const Segment& segment : segments) {
        if (taken > 0 && (segment.offset < end || segment.offset - end > kGap)) break;
        if (count + 2 > kPieces || segment.offset + segment.bytes - begin > kMaxReadBytes) break;
        if (segment.offset > end) add(skipped.data(), segment.offset - end);
        add(segment.to, segment.bytes);
        end = segment.offset + segment.bytes;
        ++taken;
      }
      if (taken == 0) {  // longer than one system call reads
        add(segments.front().to, segments.front().bytes);
        taken = 1;
      }
      read_pieces(begin, std::span(pieces).first(count));
      segments = segments.subspan(taken);
    }
  }

  void will_need(uint64_t offset, uint64_t bytes) noexcept override {
    posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes),
                  POSIX_FADV_WILLNEED);
  }

  Mapping mapping() noexcept override {
    std::call_once(mapped_, [this] { mapping_.map(fd_.get()); });
    return {mapping_.data(), mapping_.bytes()};
  }

 private:
  static constexpr size_t kPieces = 130;                        // 64 segments, their gaps
  static constexpr uint64_t kMaxReadBytes = uint64_t{1} << 30;  // a call reads no more than 2 GiB

  struct stat look() {
    struct stat found {};
    if (fstat(fd_.get(), &found) != 0) throw Error::from_errno(errno, "read", path_);
    return found;
  }

  void read_pieces(uint64_t offset, std::span<iovec> pieces) {
    while (true) {
      while (!pieces.empty() && pieces.front().iov_len == 0) pieces = pieces.subspan(1);
      if (pieces.empty()) return;
      ssize_t got = pieces.size() == 1
                        ? pread(fd_.get(), pieces[0].iov_base,
                                std::min<size_t>(pieces[0].iov_len, kMaxReadBytes),
                                static_cast<off_t>(offset))
                        : preadv(fd_.get(), pieces.data(), static_cast<int>(pieces.size()),
                                 static_cast<off_t>(offset));
      if (got < 0) {
        if (errno == EINTR) continue;
        throw Error::from_errno(errno, "read", path_ + " at byte " + std::to_string(offset));
      }
      if (got == 0) {
        throw Error(Code::kDataLoss, "read",
                    path_ + " ends at byte " + std::to_string(offset) +
                        ", where more was to be read: it has become shorter");
      }
      offset += static_cast<uint64_t>(got);
      for (auto left = static_cast<size_t>(got); left > 0;) {
        iovec& first = pieces.front();
        size_t part = std::min(left, first.iov_len);
        first = {static_cast<std::byte*>(first.iov_base) + part, first.iov_len - part};
        left -= part;
        if (first.iov_len == 0) pieces = pieces.subspan(1);
      }
    }
  }

  const std::string path_;
  const os::Fd fd_;
  std::once_flag mapped_;
  FileMapping mapping_;
};

class PosixFileSystem final : public FileSystem {
 public:
  std::shared_ptr<File> open(const std::string& path) override {
    if (is_url(path)) return open_remote(path);
    // O_NONBLOCK: opening a pipe would wait for its writer.
    os::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat found {};
    if (!fd || fstat(fd.get(), &found) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) {
        throw Error(Code::kNotFound, "open", "no such file: " + path);
      }
      const int reason = errno;
      Error error = Error::from_errno(reason, "open", path);
      if (reason == EMFILE || reason == ENFILE) throw TooManyOpenFiles(std::move(error));
      throw error;
    }
    if (!S_ISREG(found.st_mode)) {
      throw Error(Code::kInvalidArgument, "open", path + " is a folder or a device, not a file");
    }
    return std::make_shared<PosixFile>(path, std::move(fd));
  }

  std::shared_ptr<File> reopen(const std::string& path, const File::Identity& identity) override {
    return is_url(path) ? open_remote(path, identity) : open(path);
  }

  void will_open(const std::vector<std::string>& paths) noexcept override {
    std::vector<std::string> urls;
    std::ranges::copy_if(paths, std::back_inserter(urls), is_url);
    if (!urls.empty()) announce_remote(urls);
  }

  std::vector<std::string> match_url(const std::string& url) override {
    return remote_files(url).glob(url);
  }

  std::unique_ptr<Sink> create(const std::string& path) override { return create_posix_sink(path); }

  // Whether a URL names a file is known when it is opened.
  Kind kind(const std::string& path) override {
    if (is_url(path)) return entries(path + "/").empty() ? Kind::kFile : Kind::kFolder;
    struct stat found {};
    if (stat(path.c_str(), &found) != 0) return Kind::kNothing;
    return S_ISDIR(found.st_mode) ? Kind::kFolder : Kind::kFile;
  }

  std::vector<std::string> list(const std::string& folder) override {
    return list_posix_folder(folder.empty() ? "." : folder);
  }

  std::vector<Entry> entries(const std::string& folder) override {
    if (is_url(folder)) return remote_files(folder).list(folder);
    std::vector<Entry> all;
    const char* const opened = folder.empty() ? "." : folder.c_str();
    std::unique_ptr<DIR, int (*)(DIR*)> open_folder(opendir(opened), closedir);
    if (open_folder == nullptr) return all;
    while (const dirent* entry = readdir(open_folder.get())) {
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      Entry found{std::string(name), Kind::kFile, entry->d_type == DT_LNK};
      if (entry->d_type == DT_UNKNOWN) {
        struct stat about {};
        found.link =
            fstatat(dirfd(open_folder.get()), entry->d_name, &about, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISLNK(about.st_mode);
      }
      if (entry->d_type == DT_DIR) found.kind = Kind::kFolder;
      if (found.link || entry->d_type == DT_UNKNOWN) found.kind = kind(folder + found.name);
      all.push_back(std::move(found));
    }
    return all;
  }

  std::optional<int64_t> folder_modified_ns(const std::string& folder) override {
    struct stat found {};
    if (is_url(folder) || stat(folder.empty() ? "." : folder.c_str(), &found) != 0) return {};
    if (!S_ISDIR(found.st_mode)) return {};
    return modified_ns_of(found);
  }
};

}  // namespace

std::shared_ptr<File> posix_file(std::string path, os::Fd fd) {
  return std::make_shared<PosixFile>(std::move(path), std::move(fd));
}

std::shared_ptr<FileSystem> posix_files() {
  static const auto files = std::make_shared<PosixFileSystem>();
  return files;
}

}  // namespace penstock
