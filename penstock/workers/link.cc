#include "penstock/workers/link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "penstock/base/error.h"

namespace penstock {

std::pair<os::Fd, os::Fd> link_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error::from_errno(errno, "worker", "make the socket pair of a worker");
  }
  return {os::Fd(ends[0]), os::Fd(ends[1])};
}

namespace {

// What sendmsg() gives; 24 bytes into an empty or draining socket are never split on Linux.
ssize_t send_header(int fd, const LinkHeader& header, int descriptor, int flags) {
  LinkHeader copy = header;
  iovec part{&copy, sizeof(copy)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
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

}  // namespace

bool link_send(int fd, const LinkHeader& header, std::span<const std::byte> bytes, int descriptor) {
  if (send_header(fd, header, descriptor, 0) != static_cast<ssize_t>(sizeof(header))) return false;
  while (!bytes.empty()) {
    ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

LinkSent link_try_send(int fd, const LinkHeader& header, int descriptor) {
  ssize_t sent = send_header(fd, header, descriptor, MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(sizeof(header))) return LinkSent::kSent;
  bool full = sent < 0 && (errno == EAGAIN || errno == ETOOMANYREFS);
  return full ? LinkSent::kFull : LinkSent::kGone;
}

bool link_receive(int fd, LinkHeader& header, os::Fd& descriptor) {
  iovec part{&header, sizeof(header)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof(header))) return false;
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
       item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_RIGHTS) {
      int received;
      std::memcpy(&received, CMSG_DATA(item), sizeof(int));
      descriptor.reset(received);
    }
  }
  return true;
}

bool link_read(int fd, std::span<std::byte> bytes, int process) {
  while (!bytes.empty()) {
    pollfd watched[2] = {{fd, POLLIN, 0}, {process, POLLIN, 0}};
    if (poll(watched, process >= 0 ? 2 : 1, -1) < 0 && errno != EINTR) return false;
    if ((watched[0].revents & POLLNVAL) != 0) return false;
    if ((watched[0].revents & (POLLIN | POLLHUP | POLLERR)) == 0) {
      if (process >= 0 && (watched[1].revents & POLLIN) != 0) return false;
      continue;
    }
    ssize_t n = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return true;
}

bool link_pending(int fd) {
  pollfd watched{fd, POLLIN, 0};
  return poll(&watched, 1, 0) > 0 && (watched.revents & POLLIN) != 0;
}

}  // namespace penstock
