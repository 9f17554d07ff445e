#include "penstock/io/folder_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

// "process 4711", from the lock's file; "another process" if its owner has not written it yet.
std::string owner_of(int fd) {
  std::array<char, 16> text{};
  const ssize_t bytes = pread(fd, text.data(), text.size(), 0);
  std::string pid(text.data(), static_cast<size_t>(std::max<ssize_t>(bytes, 0)));
  pid.erase(std::ranges::find_if_not(pid, [](unsigned char each) { return std::isdigit(each); }),
            pid.end());
  return pid.empty() ? "another process" : "process " + pid;
}

}  // namespace

FolderLock::FolderLock(const std::string& folder, const char* operation,
                       const std::string& remedy) {
  const std::string path = folder + "/lock";
  fd_ = os::Fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd_) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw Error(Code::kNotFound, operation, "there is no folder " + folder);
    }
    throw Error::from_errno(errno, operation, "cannot open " + path);
  }
  if (!os::lock_file(fd_.get())) {
    throw Error(Code::kInvalidArgument, operation,
                folder + " is in use by " + owner_of(fd_.get()) + ": " + remedy);
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(fd_.get(), 0) != 0 ||
      pwrite(fd_.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    throw Error::from_errno(errno, operation, "cannot write " + path);
  }
  watch_forks();
}

FolderLock::FolderLock(os::Fd shared) : fd_(std::move(shared)) { watch_forks(); }

FolderLock::~FolderLock() { ignore_forks(); }

}  // namespace penstock
