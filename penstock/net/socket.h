#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"

namespace penstock::net {

// An address to listen at or connect to. As text:
//
// - tcp://127.0.0.1:7000: a host (name or number; IPv6 in brackets) and a port; port 0 picks a free
//   one. "tcp://" may be left out.
// - unix:@name: a name among this user's processes on this host: a socket file in user_folder().
// - unix:/run/ps.sock: a socket file.
//
// Threads: any.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  std::string name;  // of unix:@name

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_unix() const { return storage.ss_family == AF_UNIX; }
  // No packet to or from the address leaves the host.
  bool is_loopback() const;
  // In the form above, with numeric hosts.
  std::string text() const;
  // The host in text(), without the port; empty: a unix address.
  std::string host() const;
  // The file of a unix address; empty: another kind.
  std::string file() const;
};

// The address of a name in user_folder(). Names of different kinds are independent. A name that
// makes the path longer than a socket's may be (107 bytes) is replaced by its hash there. Errors:
// those of user_folder(); kInvalidArgument: the folder's path is too long even so.
SocketAddress named_address(const std::string& kind, const std::string& name);

// The addresses that the text resolves to, best first; at least one. "unix:@": a new free name each
// time. Errors: kInvalidArgument (malformed address), kNotFound (unknown host); those of
// named_address().
std::vector<SocketAddress> resolve(const std::string& address);

// Socket calls shared by connections and listeners. Threads: any.

// A stream socket for the address, non-blocking and closed on exec. Error kSystem.
os::Fd make_socket(const SocketAddress& address);

// False: the deadline passed, or a signal arrived, first. `events` are poll()'s.
bool wait_for(int fd, short events, const Deadline& deadline);

// Makes the socket blocking, each call for at most `call_timeout_s`. On TCP the socket also sends
// small messages immediately, and notices that a host vanished: within about half a minute while it
// is idle; with data that the host has not acknowledged, or does not read, within
// `stall_timeout_s`, but at least half a minute. Error kSystem.
void prepare_connected(int fd, bool tcp, double call_timeout_s, double stall_timeout_s);

// From now on recv() and poll() wait until so many bytes have arrived, the connection has ended, or
// the system has no memory for more. 1: as at first. For TCP. An optimization: nothing is changed
// where the system refuses.
void set_wake_bytes(int fd, size_t bytes) noexcept;

struct UnixPeer {
  pid_t pid = 0;
  uid_t user = 0;
};
std::optional<UnixPeer> unix_peer(int fd);

// The address of this end, or of the other one.
SocketAddress own_address(int fd);
SocketAddress peer_address(int fd);
// Whether no packet of the connection leaves the host.
bool on_same_host(int fd);

}  // namespace penstock::net
