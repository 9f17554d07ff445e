#include <sys/file.h>

#include <cerrno>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::os {

bool lock_file(int fd) {
  while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw Error::from_errno(errno, "lock", "a file that is being written");
  }
  return true;
}

}  // namespace penstock::os
