#pragma once

#include <sys/types.h>

#include <optional>

#include "penstock/base/os.h"
#include "penstock/net/address.h"
#include "penstock/net/deadline.h"

namespace penstock::net {

// What connections and listeners ask of sockets. Threads: any.

// A stream socket for the address, non-blocking and closed on exec. Error kSystem.
os::Fd make_socket(const SocketAddress& address);

// False: the deadline passed, or a signal came, first. `events` are poll()'s.
bool wait_for(int fd, short events, const Deadline& deadline);

// From now on calls block, each no longer than `stall_timeout_s`; on TCP small messages leave at
// once, and a host that is gone is noticed within about half a minute. Error kSystem.
void prepare_connected(int fd, bool tcp, double stall_timeout_s);

struct UnixPeer {
  pid_t pid = 0;
  uid_t user = 0;
};
std::optional<UnixPeer> unix_peer(int fd);

// The address of this end, or the other one.
SocketAddress own_address(int fd);
SocketAddress peer_address(int fd);

}  // namespace penstock::net
