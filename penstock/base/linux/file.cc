#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::os {

Fd duplicate(int fd, const char* operation) {
  Fd other(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!other) throw Error::from_errno(errno, operation, "cannot duplicate a descriptor");
  return other;
}

bool lock_file(int fd) {
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw Error::from_errno(errno, "lock", "cannot lock a file");
  }
  return true;
}

namespace {

// The path under which the kernel provides an open file.
std::array<char, 32> link_of(int fd) {
  std::array<char, 32> link;
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  return link;
}

}  // namespace

Fd unnamed_file(const char* folder) {
  Fd fd(open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  // name_file() needs /proc, which not every container has.
  if (fd && access(link_of(fd.get()).data(), F_OK) != 0) return {};
  return fd;
}

bool name_file(int fd, const char* path) {
  return linkat(AT_FDCWD, link_of(fd).data(), AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
}

}  // namespace penstock::os
