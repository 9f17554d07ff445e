#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace penstock::net {

// Where somebody listens, as people write it:
//
//   tcp://127.0.0.1:7000   a host (name or number; IPv6 in brackets) and a port; 0: a free one.
//                          "tcp://" may be left out.
//   unix:@name             a name among those of this user's processes, without a file
//   unix:/run/ps.sock      a socket file
//
// Threads: any.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_unix() const { return storage.ss_family == AF_UNIX; }
  // No packet to or from it leaves the host.
  bool is_loopback() const;
  // As above, with numbers for names.
  std::string text() const;
  // The file of a unix address; empty: none.
  std::string file() const;
};

// What it stands for, the best first; at least one. "unix:@": a free name, a new one each time.
// Errors: kInvalidArgument (no such form), kNotFound (no host of this name).
std::vector<SocketAddress> resolve(const std::string& address);

}  // namespace penstock::net
