#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/fork_aware.h"
#include "penstock/base/os.h"
#include "penstock/net/user_folder.h"

namespace penstock::train {

// Names by which processes of this user that were not started together find each other: Unix
// sockets in net::user_folder(). A name is free when the process that serves it has ended. Names of
// different kinds are independent. Containers share names if they share that folder.
//
// Both ends check the other's user before they read anything. Threads: any.

// Serves a name. Errors: kInvalidArgument: an invalid name (empty, with a zero byte, longer than
// kMaxNameBytes), or another process serves it (the text has its pid); those of
// net::named_address() and net::SocketFile.
inline constexpr size_t kMaxNameBytes = 64;
net::SocketFile serve_name(const std::string& kind, const std::string& name);

struct Peer {
  os::Fd fd;  // non-blocking, close-on-exec
  pid_t pid = 0;
};

// Connects to the process that serves a name; nothing if there is none. Error kInvalidArgument: the
// name; a process of another user serves it (the text has its pid). kSystem.
std::optional<Peer> connect_to_name(const std::string& kind, const std::string& name);

// The next connection; nothing: none is waiting, or it was of another user and is closed. `failed`
// is set if a connection could not be accepted (no descriptors).
std::optional<Peer> accept_peer(int server, bool& failed);

// The server's only message, sent when a peer connects. Never blocks.
struct Greeting {
  static constexpr uint64_t kMagic = 0x316F6C6C65687370;  // "pshello1"
  enum class Answer : uint32_t { kWelcome = 1, kFull = 2 };

  uint64_t magic = kMagic;
  Answer answer = Answer::kWelcome;
  uint32_t row = 0;  // the peer's row
};
// False: it could not be sent, and the connection is useless.
bool send_greeting(int fd, const Greeting& greeting, int descriptor = -1);

// Receives a greeting, in pieces as they arrive. Call read() when `fd` is readable.
class GreetingReader {
 public:
  enum class State { kMore, kComplete, kEnded, kGarbage };
  State read(int fd);
  const Greeting& greeting() const { return greeting_; }  // REQUIRED: kComplete
  os::Fd take_descriptor() { return std::move(descriptor_); }

 private:
  Greeting greeting_{};
  size_t got_ = 0;
  os::Fd descriptor_;
};

// Serves a name: gives each process of this user that connects a row and the descriptor of the
// shared memory, and notices the end of the connection. Uses a thread of its own, which never waits
// for a peer.
//
// In a forked child the object does nothing: the name and the peers remain the parent's.
//
// Threads: any.
class NamedServer final : private ForkAware {
 public:
  // Callbacks. Called one at a time, in the server's thread, with the server's lock held: they may
  // call nothing of the server except call_later().
  class Handler {
   public:
    // `row` is assigned to a new peer, which has not been greeted yet. Returns the descriptor to
    // send, which the callee keeps; nothing: refuse the peer.
    virtual std::optional<int> on_connect(uint32_t row, pid_t pid) = 0;
    // The row's peer has ended, or closed its connection.
    virtual void on_disconnect(uint32_t row) = 0;
    // Whether the row, which has no peer, may be assigned.
    virtual bool is_available(uint32_t) { return true; }
    // The time of call_later() has passed.
    virtual void on_timer() {}

   protected:
    ~Handler() = default;
  };

  // `handler` outlives the server. Errors: kInvalidArgument (the name, or another process has it),
  // kSystem.
  NamedServer(const char* kind, const std::string& name, uint32_t max_peers, Handler& handler);
  ~NamedServer();

  // Whether this process was forked from the server's.
  bool inherited() const { return inherited_.load(); }
  size_t peers() const;
  // The peer's pid by row; nothing for rows without a peer.
  std::vector<std::optional<pid_t>> pids() const;
  // Calls Handler::on_timer() once, after `after_ns` nanoseconds (> 0). Does nothing while a call
  // is scheduled. Takes no lock and wakes no thread. REQUIRED: not in a forked child, not at the
  // same time as stop().
  void call_later(int64_t after_ns);
  // Releases the name and closes all connections, without on_disconnect(). Call once, and not in a
  // forked child.
  void stop();

 private:
  void before_fork() noexcept override;
  void after_fork_in_parent() noexcept override;
  void after_fork_in_child() noexcept override;

  void serve() noexcept;
  void admit(Peer peer);
  void on_readable(uint32_t row);

  Handler& handler_;
  mutable std::mutex serving_;  // guards all below; also held while the process forks
  net::SocketFile server_;
  os::Fd stop_;
  os::Fd timer_;
  std::optional<os::Poller> poller_;
  std::vector<std::optional<Peer>> peers_;  // by row
  bool accept_failed_ = false;
  std::atomic<bool> inherited_{false};
  std::atomic<bool> call_scheduled_{false};
  std::unique_ptr<std::thread> thread_;
};

}  // namespace penstock::train
