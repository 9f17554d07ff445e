#include "penstock/io/posix_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string_view>

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

  void write(std::span<const std::byte> bytes) override {
    const os::HoldFileSizeSignal hold;
    while (!bytes.empty()) {
      ssize_t done = ::write(fd_.get(), bytes.data(), bytes.size());
      if (done < 0 && errno != EINTR) throw Error::from_errno(errno, "write", path_);
      if (done > 0) bytes = bytes.subspan(static_cast<size_t>(done));
    }
  }

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

}  // namespace

std::unique_ptr<Sink> posix_sink(const std::string& path) {
  return std::make_unique<PosixSink>(path);
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
