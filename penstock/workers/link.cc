#include "penstock/workers/link.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "penstock/base/descriptor_message.h"
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
  return send_message(fd, std::as_bytes(std::span(&header, 1)), descriptor, flags);
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
  return full ? LinkSent::kFull : LinkSent::kClosed;
}

bool link_receive(int fd, LinkHeader& header, os::Fd& descriptor) {
  auto bytes = std::as_writable_bytes(std::span(&header, 1));
  return receive_message(fd, bytes, descriptor, MSG_WAITALL) == static_cast<ssize_t>(bytes.size());
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
