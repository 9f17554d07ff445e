#include "penstock/net/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "penstock/base/error.h"

namespace penstock::net {
namespace {

void set_option(int fd, int level, int option, int value) {
  if (setsockopt(fd, level, option, &value, sizeof(value)) != 0) {
    throw Error::from_errno(errno, "setsockopt",
                            "cannot set socket option " + std::to_string(option));
  }
}

timeval as_timeval(double seconds) {
  timeval result{};  // zero: for ever
  if (!(seconds < 1e9)) return result;
  result.tv_sec = static_cast<time_t>(seconds);
  result.tv_usec = static_cast<suseconds_t>((seconds - std::floor(seconds)) * 1e6);
  if (result.tv_sec == 0) result.tv_usec = std::max<suseconds_t>(result.tv_usec, 1000);
  return result;
}

}  // namespace

os::Fd make_socket(const SocketAddress& address) {
  os::Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw Error::from_errno(errno, "socket", "cannot make a socket");
  return fd;
}

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd item{fd, events, 0};
  return poll(&item, 1, deadline.poll_ms()) > 0;
}

void prepare_connected(int fd, bool tcp, double stall_timeout_s) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) != 0) {
    throw Error::from_errno(errno, "fcntl", "cannot make a socket blocking");
  }
  const timeval timeout = as_timeval(stall_timeout_s);
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) {
    if (setsockopt(fd, SOL_SOCKET, option, &timeout, sizeof(timeout)) != 0) {
      throw Error::from_errno(errno, "setsockopt", "cannot set a socket's timeouts");
    }
  }
  if (!tcp) return;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

std::optional<UnixPeer> unix_peer(int fd) {
  ucred who{};
  socklen_t length = sizeof(who);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) return std::nullopt;
  return UnixPeer{who.pid, who.uid};
}

SocketAddress own_address(int fd) {
  SocketAddress result;
  result.length = sizeof(result.storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&result.storage), &result.length) != 0) {
    throw Error::from_errno(errno, "getsockname", "cannot read a socket's own address");
  }
  return result;
}

SocketAddress peer_address(int fd) {
  SocketAddress result;
  result.length = sizeof(result.storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&result.storage), &result.length) != 0) {
    throw Error::from_errno(errno, "getpeername", "cannot read the peer's address");
  }
  return result;
}

}  // namespace penstock::net
