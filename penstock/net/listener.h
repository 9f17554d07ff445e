#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/fork_aware.h"
#include "penstock/base/os.h"
#include "penstock/net/connection.h"
#include "penstock/net/handshake.h"
#include "penstock/net/user_folder.h"

namespace penstock::net {

struct ListenOptions : LinkOptions {
  // Seconds within which a client must prove that it knows the secret; then it is disconnected.
  double handshake_timeout_s = 10;
  // Seconds within which it must begin to.
  double silent_timeout_s = 3;
  // The most handshakes at a time. For one more, a client is disconnected: of the host with the
  // most handshakes, the oldest that has sent nothing, or else the oldest.
  size_t max_handshakes = 256;
};

// Accepts connections at an address (see address.h); by default on loopback, at a port that the
// system picks. All pending handshakes advance while a thread is in accept(), so a slow, silent or
// hostile client delays no other.
//
// Threads: one at a time accepts; close() may be called by any. In a forked child the listener is
// closed, and the parent's stays open.
class Listener final : private ForkAware {
 public:
  // Errors: kInvalidArgument (malformed address; an address that other hosts reach, without a
  // secret; an address in use), kNotFound, kSystem.
  explicit Listener(const std::string& address = "tcp://127.0.0.1:0", ListenOptions options = {});
  ~Listener();

  // The address as connect() takes it, with the port that the system picked.
  const std::string& address() const { return address_; }

  // The next authenticated connection. nullptr: the timeout passed, or the listener was closed.
  // Error kSystem.
  std::unique_ptr<Connection> accept(double timeout_s);

  // Wakes accept(). Accepted connections stay open.
  void close() noexcept;
  bool closed() const { return closed_.load(std::memory_order_acquire); }

 private:
  void before_fork() noexcept override { pending_mutex_.lock(); }
  void after_fork_in_parent() noexcept override { pending_mutex_.unlock(); }
  void after_fork_in_child() noexcept override;

  // A TCP client whose handshake is not complete.
  struct PendingConnection;

  std::unique_ptr<Connection> accept_local();
  void accept_pending();
  static bool advance(PendingConnection& pending);
  void advance_all();
  void disconnect_one();
  std::unique_ptr<PendingConnection> take_authenticated();
  std::unique_ptr<Connection> try_accept();
  os::Fd next_socket();
  void wait(Deadline until);

  const ListenOptions options_;
  Handshake::Options handshake_;  // of TCP clients on this host
  int listening() const { return file_ ? file_.get() : socket_.get(); }

  os::Fd socket_;    // of TCP
  SocketFile file_;  // of a Unix address
  os::Fd wake_;
  std::string address_;
  bool local_ = false;
  std::atomic<bool> closed_{false};
  // Held while pending_ changes, so that a forked child finds it consistent. Not held while a
  // Connection is constructed, since that registers fork handlers itself.
  std::mutex pending_mutex_;
  std::vector<std::unique_ptr<PendingConnection>> pending_;       // oldest first
  std::deque<std::unique_ptr<PendingConnection>> authenticated_;  // for the next calls of accept()
  std::optional<Deadline> pause_;  // set while the process is out of descriptors or memory
};

}  // namespace penstock::net
