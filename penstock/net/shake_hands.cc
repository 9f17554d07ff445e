#include "penstock/net/shake_hands.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "penstock/base/error.h"

namespace penstock::net {
namespace {

// Whether it would have blocked; throws if it failed.
bool blocks(const std::string& peer) {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return true;
  if (errno == EINTR) return false;
  throw Error(Code::kClosed, "handshake", peer + " hung up: " + strerror(errno));
}

}  // namespace

Shaken shake_hands(int fd, Handshake& handshake, const std::string& peer) {
  for (;;) {
    if (const auto out = handshake.outgoing(); !out.empty()) {
      const ssize_t sent = send(fd, out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent >= 0) {
        handshake.sent(static_cast<size_t>(sent));
      } else if (blocks(peer)) {
        return Shaken::kWrites;
      }
    } else if (handshake.complete()) {
      return Shaken::kComplete;
    } else if (handshake.refused()) {
      return Shaken::kRefused;
    } else {
      const auto in = handshake.incoming();
      const ssize_t got = recv(fd, in.data(), in.size(), MSG_DONTWAIT);
      if (got > 0) {
        handshake.received(static_cast<size_t>(got));
      } else if (got == 0) {
        throw Error(Code::kClosed, "handshake", peer + " hung up");
      } else if (blocks(peer)) {
        return Shaken::kReads;
      }
    }
  }
}

}  // namespace penstock::net
