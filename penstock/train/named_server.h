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
#include "penstock/train/named_socket.h"

namespace penstock::train {

// Serves a name (named_socket.h): gives each process of this user that connects a row and the
// descriptor of the memory that is shared, and notices the end of the connection. A thread of its
// own does it, which never waits for a peer.
//
// A forked child serves nothing: there, the name and the peers remain its parent's.
//
// Threads: any.
class NamedServer final : private ForkAware {
 public:
  // What becomes of rows. Called one at a time, in the server's thread, while the server's lock is
  // held: calls nothing of the server's but call_later().
  class Rows {
   public:
    // `row` has a peer from now on, which has not been told yet. The descriptor that it gets, whose
    // owner keeps it; nothing: it can have no row.
    virtual std::optional<int> came(uint32_t row, pid_t pid) = 0;
    // Its peer is gone, or let go of all that it had.
    virtual void left(uint32_t row) = 0;
    // Nobody has it, but may somebody get it?
    virtual bool may_have(uint32_t) { return true; }
    // The time of call_later() is over.
    virtual void due() {}

   protected:
    ~Rows() = default;
  };

  // `rows` outlives the server. Errors: kInvalidArgument (the name, or another process has it),
  // kSystem.
  NamedServer(const char* kind, const std::string& name, uint32_t most, Rows& rows);
  ~NamedServer();

  bool inherited() const { return inherited_.load(); }  // this process was forked from the server's
  size_t peers() const;
  // By row, as far as rows have peers.
  std::vector<std::optional<pid_t>> pids() const;
  // Rows::due() is called once, so many nanoseconds (> 0) from now. Does nothing while a call is to
  // come. Takes no lock and wakes nobody. Not in a forked child, nor beside stop().
  void call_later(int64_t after_ns);
  // Gives the name up and ends all connections; left() is not called for them. Once, and not in a
  // forked child.
  void stop();

 private:
  void before_fork() noexcept override;
  void after_fork_in_parent() noexcept override;
  void after_fork_in_child() noexcept override;

  void serve() noexcept;
  void welcome(Peer peer);
  void listen_to(uint32_t row);

  Rows& rows_;
  mutable std::mutex serving_;  // all below; also held while the process forks
  os::Fd server_;
  os::Fd stop_;
  os::Fd timer_;
  std::optional<os::Poller> poller_;
  std::vector<std::optional<Peer>> peers_;  // by row
  bool cannot_accept_ = false;
  std::atomic<bool> inherited_{false};
  std::atomic<bool> call_to_come_{false};
  std::unique_ptr<std::thread> thread_;
};

}  // namespace penstock::train
