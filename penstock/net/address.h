#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace penstock::net {

// An address to listen at or connect to. As text:
//
// - tcp://127.0.0.1:7000: a host (name or number; IPv6 in brackets) and a port; port 0 picks a free
//   one. "tcp://" may be left out.
// - unix:@name: an abstract name, private to this user's processes, without a file.
// - unix:/run/ps.sock: a socket file.
//
// Threads: any.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_unix() const { return storage.ss_family == AF_UNIX; }
  // No packet to or from the address leaves the host.
  bool is_loopback() const;
  // In the form above, with numeric hosts.
  std::string text() const;
  // The file of a unix address; empty: none.
  std::string file() const;
};

// The addresses that the text resolves to, best first; at least one. "unix:@": a new free name each
// time. Errors: kInvalidArgument (malformed address), kNotFound (unknown host).
std::vector<SocketAddress> resolve(const std::string& address);

}  // namespace penstock::net
