#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/net/connection.h"
#include "penstock/net/handshake.h"
#include "penstock/net/socket.h"

namespace penstock::net {
namespace {

constexpr char kConnect[] = "connect";
constexpr double kCallbackS = 0.1;

Error timed_out(const SocketAddress& address) {
  return Error(Code::kTimeout, kConnect, "no answer from " + address.text() + " in time");
}

// False: the deadline passed first.
bool wait_until_ready(int fd, short events, const ConnectOptions& options,
                      const Deadline& deadline) {
  for (;;) {
    const Deadline slice(options.while_waiting ? kCallbackS : kForEver);
    if (wait_for(fd, events, Deadline::earlier(slice, deadline))) return true;
    if (deadline.passed()) return false;
    if (options.while_waiting) options.while_waiting();
  }
}

// 0, or an errno.
int try_to_connect(int fd, const SocketAddress& address, const ConnectOptions& options,
                   const Deadline& deadline) {
  for (;;) {
    if (::connect(fd, address.get(), address.length) == 0) return 0;
    if (errno == EISCONN) return 0;
    if (errno == EAGAIN) {
      // The Unix listener's queue of pending connections is full.
      if (deadline.passed()) return ETIMEDOUT;
      if (options.while_waiting) options.while_waiting();
      poll(nullptr, 0, 5);
    } else if (errno == EINPROGRESS || errno == EALREADY || errno == EINTR) {
      break;
    } else {
      return errno;
    }
  }
  if (!wait_until_ready(fd, POLLOUT, options, deadline)) return ETIMEDOUT;
  int error = 0;
  socklen_t length = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

std::unique_ptr<Connection> authenticate(os::Fd fd, const SocketAddress& address,
                                         const ConnectOptions& options, const Deadline& deadline) {
  if (!address.is_unix()) {
    Handshake handshake(Handshake::Side::kClient,
                        Handshake::options(options, on_same_host(fd.get()), address.text()),
                        address.text());
    for (;;) {
      const HandshakeStatus status = advance_handshake(fd.get(), handshake, address.text());
      if (status == HandshakeStatus::kComplete) break;
      const short events = status == HandshakeStatus::kWantsWrite ? POLLOUT : POLLIN;
      if (!wait_until_ready(fd.get(), events, options, deadline)) throw timed_out(address);
    }
    return std::make_unique<Connection>(std::move(fd), false, address.text(), options,
                                        handshake.take_tls());
  }
  const auto who = unix_peer(fd.get());
  if (!who)
    throw Error::from_errno(errno, kConnect, "cannot identify the process at " + address.text());
  if (who->user != geteuid()) {
    throw Error(Code::kInvalidArgument, kConnect,
                address.text() + " is served by process " + std::to_string(who->pid) +
                    " of another user (" + std::to_string(who->user) + "), which is not trusted");
  }
  return std::make_unique<Connection>(std::move(fd), true, "process " + std::to_string(who->pid),
                                      options);
}

}  // namespace

std::unique_ptr<Connection> connect(const std::string& address, const ConnectOptions& options) {
  const Deadline deadline(options.timeout_s);
  Handshake::check(options.secret);
  int error = 0;
  const auto candidates = resolve(address);
  for (const SocketAddress& each : candidates) {
    os::Fd fd = make_socket(each);
    error = try_to_connect(fd.get(), each, options, deadline);
    if (error == 0) return authenticate(std::move(fd), each, options, deadline);
    if (error == ETIMEDOUT && deadline.passed()) throw timed_out(each);
  }
  if (error == ECONNREFUSED || error == ENOENT) {
    throw Error(Code::kNotFound, kConnect, "no process listens at " + address);
  }
  throw Error::from_errno(error, kConnect, "cannot connect to " + address);
}

}  // namespace penstock::net
