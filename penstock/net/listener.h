#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/memory/fork_aware.h"
#include "penstock/net/connection.h"
#include "penstock/net/deadline.h"

namespace penstock::net {

struct ListenOptions : LinkOptions {
  // Whoever has not proved by then that it has the secret is sent away. In seconds.
  double handshake_timeout_s = 10;
  // So many may be at it at once; one more, and the one that has been for longest is sent away.
  size_t most_handshakes = 64;
};

// Takes connections at an address (see address.h): by itself at one of loopback, at a port that the
// system picks. Handshakes go on, all at once, while somebody is in accept(): one who is slow,
// silent or an enemy holds up nobody else.
//
// Threads: one at a time accepts, close() may be called by any. In a forked child it is closed, and
// the parent's goes on.
class Listener final : private ForkAware {
 public:
  // Errors: kInvalidArgument (no such address; one that other hosts reach, without a secret;
  // taken), kNotFound, kSystem.
  explicit Listener(const std::string& address = "tcp://127.0.0.1:0", ListenOptions options = {});
  ~Listener();

  // Where it listens, as connect() takes it: with the port that the system picked.
  const std::string& address() const { return address_; }

  // The next connection. nullptr: none came in time, or it was closed. Whoever is not allowed in is
  // not seen here. Error kSystem.
  std::unique_ptr<Connection> accept(double timeout_s);

  // Wakes accept(). Connections that were accepted stay.
  void close() noexcept;
  bool closed() const { return closed_.load(std::memory_order_acquire); }

 private:
  void before_fork() noexcept override { strangers_mutex_.lock(); }
  void after_fork_in_parent() noexcept override { strangers_mutex_.unlock(); }
  void after_fork_in_child() noexcept override;
  // One that connected over TCP and is not known yet.
  struct Stranger;

  std::unique_ptr<Connection> take_local();
  void let_in();
  static bool shake(Stranger& stranger);
  std::unique_ptr<Stranger> known();
  std::unique_ptr<Connection> take();
  os::Fd next_socket();
  void wait(Deadline until);

  const ListenOptions options_;
  os::Fd socket_;
  os::Fd wake_;
  std::string address_;
  std::string file_;  // to be removed in the end
  bool local_ = false;
  std::atomic<bool> closed_{false};
  // Held while they change, so that a forked child finds them whole. Never while a connection is
  // made, which waits for forks itself.
  std::mutex strangers_mutex_;
  std::vector<std::unique_ptr<Stranger>> strangers_;  // the oldest first
  std::optional<Deadline> pause_;                     // after descriptors or memory ran out
};

}  // namespace penstock::net
