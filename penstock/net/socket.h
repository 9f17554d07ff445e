#pragma once

#include <sys/types.h>

#include <optional>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"
#include "penstock/net/address.h"

namespace penstock::net {

// Socket calls shared by connections and listeners. Threads: any.

// A stream socket for the address, non-blocking and closed on exec. Error kSystem.
os::Fd make_socket(const SocketAddress& address);

// False: the deadline passed, or a signal arrived, first. `events` are poll()'s.
bool wait_for(int fd, short events, const Deadline& deadline);

// Makes the socket blocking, each call for at most `stall_timeout_s`. On TCP the socket also sends
// small messages immediately, and notices within about half a minute that a host vanished. Error
// kSystem.
void prepare_connected(int fd, bool tcp, double stall_timeout_s);

struct UnixPeer {
  pid_t pid = 0;
  uid_t user = 0;
};
std::optional<UnixPeer> unix_peer(int fd);

// The address of this end, or of the other one.
SocketAddress own_address(int fd);
SocketAddress peer_address(int fd);

}  // namespace penstock::net
