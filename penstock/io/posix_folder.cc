#include "penstock/io/posix_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
#include "penstock/base/unnamed_file.h"

namespace penstock {
namespace {

// Another one each time; a process of the same number on another machine, or before it, may have
// made it.
std::string hidden_beside(const std::string& path) {
  static std::atomic<uint64_t> count{0};
  const size_t name = path.rfind('/') + 1;  // npos + 1 is 0
  return path.substr(0, name) + "." + path.substr(name) + "." + std::to_string(getpid()) + "-" +
         std::to_string(count.fetch_add(1, std::memory_order_relaxed)) + ".part";
}

void write_all(int fd, std::span<const std::byte> bytes, const std::string& path) {
  const os::HoldFileSizeSignal hold;
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno != EINTR) throw Error::from_errno(errno, "write", path);
    if (done > 0) bytes = bytes.subspan(static_cast<size_t>(done));
  }
}

class PosixSink final : public Sink {
 public:
  explicit PosixSink(const std::string& path) : path_(path) {
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

  ~PosixSink() override {
    if (fd_ && !hidden_.empty()) unlink(hidden_.c_str());
  }

  void write(std::span<const std::byte> bytes) override { write_all(fd_.get(), bytes, path_); }

  void commit() override {
    if (fsync(fd_.get()) != 0 || !appear()) throw Error::from_errno(errno, "write", path_);
    fd_.reset();
  }

 private:
  // False, and errno: it does not.
  bool appear() {
    if (hidden_.empty()) {
      if (os::name_file(fd_.get(), path_.c_str())) return true;
      if (errno != EEXIST) return false;
      // A name that is taken is only given to what has one itself.
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
  std::string hidden_;  // empty: the file has no name
  os::Fd fd_;
};

// A device or a pipe: what is written is gone at once, and there is nothing to replace.
class ThroughSink final : public Sink {
 public:
  explicit ThroughSink(const std::string& path) : path_(path) {
    // A pipe that nobody reads is an error (ENXIO) and no wait.
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

std::string without_links(std::string path) {
  constexpr int kMostLinks = 40;  // Linux's own limit
  for (int n = 0; n < kMostLinks; ++n) {
    std::error_code none;
    const std::filesystem::path target = std::filesystem::read_symlink(path, none);
    if (none) return path;
    path = (std::filesystem::path(path).parent_path() / target).string();
  }
  throw Error::from_errno(ELOOP, "create", path);
}

std::unique_ptr<Sink> posix_sink(const std::string& path) {
  struct stat there {};
  if (stat(path.c_str(), &there) != 0 || S_ISREG(there.st_mode)) {
    return std::make_unique<PosixSink>(without_links(path));
  }
  if (S_ISCHR(there.st_mode) || S_ISFIFO(there.st_mode)) return std::make_unique<ThroughSink>(path);
  throw Error(Code::kInvalidArgument, "create",
              path + " is a folder, a disk or a socket: give the name of a file");
}

std::vector<std::string> posix_list(const std::string& folder) {
  std::vector<std::string> names;
  std::unique_ptr<DIR, int (*)(DIR*)> open_folder(opendir(folder.c_str()), closedir);
  if (open_folder == nullptr) return names;
  while (const dirent* entry = readdir(open_folder.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

}  // namespace penstock
