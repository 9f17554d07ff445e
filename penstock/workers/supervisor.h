#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/memory/allocator.h"
#include "penstock/memory/region.h"
#include "penstock/workers/link.h"
#include "penstock/workers/slot.h"
#include "penstock/workers/ticket_failures.h"
#include "penstock/workers/ticket_ring.h"
#include "penstock/workers/worker_arenas.h"

namespace penstock {

// Watches over the workers of a ring, in the consumer's process. It notices their deaths (pidfd)
// and reopens their tickets, ends workers that take too long (TicketFailures), allocates memory for
// batches, and receives messages from the links. It starts no worker: wait() says which worker has
// to be started again.
//
// States of a worker process:
//
//   - attach -> starting.
//   - starting -> running: it sent kArena.
//   - starting -> failed: it sent kFailed. wait() reports that; a replacement would fail as well.
//   - running -> died: its pidfd says so. Its tickets are open again.
//
// A remote worker is a thread of the consumer's process that has a connection to another host
// (RemoteWorker). It reports the end of its connection itself: remote_ended().
//
// wait() belongs to one thread; all others may be called from any.
class Supervisor {
 public:
  using Policy = TicketFailures::Policy;
  enum class Kind { kNothing, kDied, kAbandoned, kFailed, kClosed };
  struct Event {
    Kind kind = Kind::kNothing;
    uint32_t worker = 0;
    uint32_t tickets = 0;  // that the worker had claimed
    bool ready = false;    // kDied: the worker had started to serve tickets
    std::string detail;    // kFailed: the encoded exception
  };

  // `arena`: the consumer's, where batches are filled; outlives the supervisor.
  Supervisor(TicketRing& ring, Allocator& arena, const Policy& policy);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // A worker process was started in this place. `process`: its pidfd; `link`: the consumer's end.
  void attach(uint32_t worker, os::Fd process, os::Fd link);
  // Sends the descriptor of the plan's changes to every living worker. Waits for a worker that has
  // not read for long.
  void send_update(uint64_t version, int descriptor);
  void send_update_to(uint32_t worker, uint64_t version, int descriptor);

  // A remote worker begins in this place. `cut` closes its connection; any thread may call it,
  // until remote_ended() or close() has returned.
  void attach_remote(uint32_t worker, std::function<void()> cut);
  // The connection of the remote worker ended: its tickets are open again when this returns.
  // `charged`: it counts as a loss of each. Called by the worker's own thread, outside of a ticket.
  void remote_ended(uint32_t worker, bool charged);

  // Sleeps until the caller has to do something: see Kind.
  Event wait();

  // The workers' arenas, where their results are. After close(), forget() drops them all; leases
  // keep theirs alive.
  WorkerArenas& arenas() { return arenas_; }

  // Kills every process that still runs after `grace_ns`, and ends wait() for good.
  void close(int64_t grace_ns);

 private:
  struct Process {
    os::Fd pidfd;
    os::Fd link;
    std::function<void()> cut;  // of a remote worker
    bool failed = false;
    bool ready = false;
  };
  void on_message(uint32_t worker, Event& event);
  void reap(uint32_t worker, Event& event);
  void receive_spill(uint32_t worker, int link, int process, const LinkHeader& header);
  bool serve_all_space_requests();
  bool kill(uint32_t worker, bool wait);

  TicketRing& ring_;
  Allocator& arena_;
  WorkerArenas arenas_;
  os::Poller poller_;
  os::Fd alarm_;
  std::mutex reading_;  // held while descriptors of processes_ are read; locked before mutex_
  std::mutex mutex_;    // of processes_
  std::vector<Process> processes_;
  std::atomic<bool> closed_{false};
  bool space_pending_ = false;  // used by wait() only
  std::mutex failing_;          // of failures_; locked before mutex_
  TicketFailures failures_;
};

}  // namespace penstock
