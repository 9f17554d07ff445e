#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/memory/allocator.h"
#include "penstock/memory/region.h"
#include "penstock/workers/link.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// A result that came through the link because the worker's arena had no space: the bytes of a
// self-contained packet, in ordinary memory. Task::object points at it; the code that takes the
// result deletes it.
struct Spill {
  std::unique_ptr<std::byte[]> bytes;
  uint64_t size = 0;
};
inline constexpr uint32_t kSpilled = 0xffffffff;  // BlockRef::arena of such a packet

// Watches over the workers of a ring, in the consumer's process. It notices their deaths (pidfd)
// and reopens their tickets, ends workers that take too long, allocates memory for batches, and
// receives messages from the links. It starts no worker: wait() says which worker has to be started
// again.
//
// States of a ticket that takes too long (moved by the thread in wait()):
//
//   - claimed -> taken: take_over.
//   - taken -> done, or open again: its process is gone, or its thread is not in a Slot::Write. A
//     ticket whose timeout is raised as an error does not wait for its thread.
//   - taken -> leaving: its thread is in a Slot::Write.
//   - leaving -> done, or open again: the thread left the Write.
//   - leaving -> done (kTimeout): the thread did not leave it within another timeout.
//
// States of a worker process:
//
//   - attach -> starting.
//   - starting -> running: it sent kArena.
//   - starting -> failed: it sent kFailed. wait() reports that; a replacement would fail as well.
//   - running -> died: its pidfd says so. Its tickets are open again.
//
// wait() belongs to one thread; attach, send_update, arena and close may be called from any.
class Supervisor {
 public:
  struct Policy {
    bool raise = true;        // a lost or timed-out ticket is an error; else its call is poisoned
    int64_t timeout_ns = -1;  // of a ticket; < 0: none
    uint32_t max_losses = 3;
    bool processes = true;  // a stuck process is killed; a stuck thread can only be abandoned
  };
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

  // Sleeps until the caller has to do something: see Kind.
  Event wait();

  // Whether a worker announced the arena with this number, so that region() will not wait.
  bool knows(uint32_t number);
  // The arena with this number. Waits for the worker's message, because a result may overtake it.
  // nullptr once the supervisor or the ring is closed.
  std::shared_ptr<Region> region(uint32_t number);

  // Drops all arenas; leases keep theirs alive. After close().
  void forget_arenas();

  // Kills every process that still runs after `grace_ns`, and ends wait() for good.
  void close(int64_t grace_ns);

 private:
  struct Process {
    os::Fd pidfd;
    os::Fd link;
    bool failed = false;
    bool ready = false;
  };
  // A worker's arena. After its worker died, it is kept until the consumer has taken or dropped
  // every ticket that was posted by then; afterwards only leases keep it. The empty entry records
  // that the arena existed.
  struct Arena {
    std::shared_ptr<Region> region;
    uint32_t worker = 0;
    bool orphan = false;
    std::array<uint64_t, kMaxLanes> until{};  // by lane
  };
  void on_message(uint32_t worker, Event& event);
  void orphan_arenas(uint32_t worker);
  void drop_orphans();
  void reap(uint32_t worker, Event& event);
  void receive_spill(uint32_t worker, int link, int process, const LinkHeader& header);
  bool serve_all_space_requests();
  void check_timeouts(Event& event);
  void check_timeouts_of(TicketRing& lane, uint64_t now, Event& event);
  // An abandoned thread in a Slot::Write. Its task stays writing until the thread stops or a
  // further timeout is over.
  struct Leaving {
    TicketRing::Claim claim;
    Call call;
    uint32_t tickets;  // claimed in its place so far; if there are more, the thread has ended
    uint64_t until_ns;
  };
  void end_process(const TicketRing::Claim& claim);
  void abandon_thread(const TicketRing::Claim& claim, uint64_t now);
  void settle_leaving(uint64_t now);
  bool is_writing(const Leaving& thread);
  Call in_hand(const TicketRing::Claim& claim);
  static void fail_after_losses(void* self, const TicketRing::Claim& claim);
  bool is_raised(const Call& call) const { return policy_.raise || call.what == kCollating; }
  void give_up(const TicketRing::Claim& claim, const Call& call, ResultKind kind);
  void fail(const TicketRing::Claim& claim, const Call& call, ResultKind kind);

  TicketRing& ring_;
  Allocator& arena_;
  Policy policy_;
  os::Poller poller_;
  os::Fd alarm_;
  std::mutex reading_;  // held while descriptors of processes_ are read; locked before mutex_
  std::mutex mutex_;    // of the members up to any_orphans_
  std::condition_variable announced_;
  std::vector<Process> processes_;
  std::map<uint32_t, Arena> arenas_;
  bool any_orphans_ = false;
  std::atomic<bool> closed_{false};
  // Used by wait() only:
  bool space_pending_ = false;
  // Claims (lane, word) whose workers were killed because of a newly poisoned row.
  std::set<std::pair<uint32_t, uint64_t>> just_poisoned_;
  std::vector<Leaving> leaving_;
  uint64_t next_timeout_check_ = 0;
};

}  // namespace penstock
