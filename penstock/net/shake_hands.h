#pragma once

#include "penstock/net/handshake.h"

namespace penstock::net {

// A handshake over a socket that does not block: sends and receives what can be now.
// Errors: the handshake's, kClosed (the other end hung up).
enum class Shaken {
  kReads,   // goes on when the socket is readable
  kWrites,  // when it is writable
  kComplete,
  kRefused,
};
Shaken shake_hands(int fd, Handshake& handshake, const std::string& peer);

}  // namespace penstock::net
