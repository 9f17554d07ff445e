#include "penstock/base/descriptor_message.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace penstock {

ssize_t send_message(int fd, std::span<const std::byte> bytes, int descriptor, int flags) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return send_message(fd, std::span(&part, 1), descriptor, flags);
}

ssize_t send_message(int fd, std::span<const iovec> parts, int descriptor, int flags) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* item = CMSG_FIRSTHDR(&message);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &descriptor, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(fd, &message, MSG_NOSIGNAL | flags);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t receive_message(int fd, std::span<std::byte> bytes, os::Fd& descriptor, int flags) {
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  ssize_t got;
  do {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | flags);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return got;
  // There may be several descriptors: close all but the last.
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
       item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int received;
      std::memcpy(&received, CMSG_DATA(item) + i * sizeof(int), sizeof(int));
      descriptor.reset(received);
    }
  }
  return got;
}

}  // namespace penstock
