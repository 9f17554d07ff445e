#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

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
    if (errno != EINTR) throw Error::from_errno(errno, "lock", "a file that is being written");
  }
  return true;
}

}  // namespace penstock::os
