#include "penstock/base/unnamed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>

namespace penstock::os {
namespace {

// Where the kernel has an open file under a name.
std::array<char, 32> link_of(int fd) {
  std::array<char, 32> link;
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  return link;
}

}  // namespace

Fd unnamed_file(const char* folder) {
  Fd fd(open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666));
  // It gets its name by way of /proc, which not every container has.
  if (fd && access(link_of(fd.get()).data(), F_OK) != 0) return {};
  return fd;
}

bool name_file(int fd, const char* path) {
  return linkat(AT_FDCWD, link_of(fd).data(), AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0;
}

}  // namespace penstock::os
