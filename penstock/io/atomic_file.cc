#include "penstock/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>
#include <string_view>

#include "penstock/base/error.h"
#include "penstock/io/file.h"

namespace penstock {
namespace {

constexpr std::string_view kSuffix = ".filling";

// The position of the file name in a path.
size_t name_in(const std::string& path) { return path.rfind('/') + 1; }  // npos + 1 is 0

// The beginning of the hidden names of a file.
std::string prefix_of(const std::string& path) {
  std::string prefix = path;
  return prefix.insert(name_in(path), 1, '.').append(".");
}

os::Fd open_file(const std::string& path, int flags) {
  return os::Fd(open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666));
}

// Removes hidden files whose writers have ended.
void remove_orphans(const std::string& path) {
  const std::string folder = path.substr(0, name_in(path));
  const std::string prefix = prefix_of(path).substr(folder.size());
  for (const std::string& name : list_posix_folder(folder.empty() ? "." : folder)) {
    if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) continue;
    // Only <pid>-<n> may stand between prefix and suffix; anything else is another file.
    const std::string_view between =
        std::string_view(name).substr(prefix.size(), name.size() - prefix.size() - kSuffix.size());
    if (between.find_first_not_of("0123456789-") != std::string_view::npos) continue;
    const os::Fd left = open_file(folder + name, O_RDWR);
    if (left && os::lock_file(left.get())) unlink((folder + name).c_str());
  }
}

// The hidden names of this process, removed when it exits. An interpreter may exit without
// destroying the objects of its scripts.
class HiddenNames {
 public:
  static HiddenNames& of_process() {
    static auto* in_use =
        new HiddenNames;  // never destroyed: AtomicFiles may outlive static objects
    static const Sweeper sweeper;
    return *in_use;
  }
  void add(const std::string& hidden) {
    std::lock_guard lock(mutex_);
    names_.emplace(hidden, getpid());
  }
  void remove(const std::string& hidden) {
    std::lock_guard lock(mutex_);
    names_.erase(hidden);
  }

 private:
  struct Sweeper {
    ~Sweeper() { of_process().sweep(); }
  };
  void sweep() {
    std::lock_guard lock(mutex_);
    for (const auto& [hidden, owner] : names_) {
      if (owner == getpid()) unlink(hidden.c_str());
    }
  }
  std::mutex mutex_;
  std::map<std::string, pid_t> names_;
};

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : owner_(getpid()) {
  static std::atomic<uint64_t> count{0};
  remove_orphans(path);
  while (true) {
    hidden_ = prefix_of(path);
    hidden_.append(std::to_string(owner_)).append("-").append(std::to_string(count.fetch_add(1)));
    hidden_.append(kSuffix);
    fd_ = open_file(hidden_, O_RDWR | O_CREAT | O_EXCL);
    if (!fd_) {
      if (errno == EEXIST) continue;  // made by a process with the same pid in another container
      if (errno == ENOENT || errno == ENOTDIR) {
        throw Error(Code::kNotFound, "create", "there is no folder for " + path);
      }
      throw Error::from_errno(errno, "create", path);
    }
    // Before the file was locked, another process may have removed it as an orphan.
    struct stat found {};
    if (os::lock_file(fd_.get()) && fstat(fd_.get(), &found) == 0 && found.st_nlink > 0) break;
  }
  HiddenNames::of_process().add(hidden_);
}

AtomicFile::~AtomicFile() {
  if (!owned()) return;
  HiddenNames::of_process().remove(hidden_);
  unlink(hidden_.c_str());
}

bool AtomicFile::owned() const { return getpid() == owner_; }

bool publish_file(int fd, const std::string& hidden, const std::string& path) {
  if (fsync(fd) != 0) throw Error::from_errno(errno, "write", path);
  if (link(hidden.c_str(), path.c_str()) == 0) {
    unlink(hidden.c_str());
  } else {
    if (errno == EEXIST) return false;
    // The file system has no hard links.
    if (access(path.c_str(), F_OK) == 0) return false;
    if (rename(hidden.c_str(), path.c_str()) != 0) throw Error::from_errno(errno, "write", path);
  }
  const std::string folder = path.substr(0, name_in(path));
  sync_posix_folder(folder.empty() ? "." : folder, "write");
  return true;
}

void write_at(int fd, uint64_t offset, const void* bytes, size_t count, const std::string& path) {
  const os::FileSizeSignalBlocker hold;
  const auto* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t done = pwrite(fd, from, count, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) throw Error::from_errno(done < 0 ? errno : ENOSPC, "write", path);
    from += done;
    offset += static_cast<uint64_t>(done);
    count -= static_cast<size_t>(done);
  }
}

}  // namespace penstock
