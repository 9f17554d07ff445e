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
#include "penstock/workers/board.h"
#include "penstock/workers/link.h"

namespace penstock {

// A result that came through the link because its worker's arena had no room: the bytes of a
// self-contained packet in ordinary memory. Unit::object points at one; whoever takes the result
// deletes it.
struct Spill {
  std::unique_ptr<std::byte[]> bytes;
  uint64_t size = 0;
};
inline constexpr uint32_t kSpilled = 0xffffffff;  // BlockRef::arena of such a packet

// Watches over the workers of a board, in the feed's process: notices their deaths (pidfd) and
// gives their tickets to others, ends those that take too long, finds room for batches, and
// receives what comes over the links. It starts nothing: wait() says what has to be started again.
//
// Life of a ticket that takes too long, and who moves it on (always the thread in wait()):
//
//   claimed ──take_over──> taken ──its process is gone─────────────────> done, or open again
//                            ├────its thread writes nothing────────────> done, or open again
//                            └────it writes: leaving ──it stops────────> done, or open again
//                                              └──────timeout, again───> done (kTimeout)
// A taken ticket that is an error in any case does not wait for its thread.
//
// Life of a worker process, as the supervisor sees it:
//   attach ──> starting ──kArena──> running ──pidfd──> died (its tickets are open again)
//                  └──kFailed──> failed (wait() reports it; no replacement can help)
//
// wait() belongs to one thread; attach, send_update, arena and close may be called from any.
class Supervisor {
 public:
  struct Policy {
    bool raise = true;        // a lost or timed-out ticket is an error; else its call is poisoned
    int64_t timeout_ns = -1;  // of a ticket; < 0: none
    uint32_t most_losses = 3;
    bool processes = true;  // a worker that is stuck can be killed; a thread can only be abandoned
  };
  enum class Kind { kNothing, kDied, kAbandoned, kFailed, kClosed };
  struct Event {
    Kind kind = Kind::kNothing;
    uint32_t worker = 0;
    uint32_t tickets = 0;  // that it had claimed
    bool ready = false;    // kDied: it had come as far as serving tickets
    std::string detail;    // kFailed: the encoded exception
  };

  // `arena`: the feed's, where batches are filled; outlives the supervisor.
  Supervisor(Board& board, Allocator& arena, const Policy& policy);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // A worker process was started in this place; `process` is its pidfd, `link` our end of its link.
  void attach(uint32_t worker, os::Fd process, os::Fd link);
  // The descriptor of the plan's changes, to every living worker. Waits for one that has not read
  // for long.
  void send_update(uint64_t version, int descriptor);
  void send_update_to(uint32_t worker, uint64_t version, int descriptor);

  // Sleeps until something has to be done that only the caller can do.
  Event wait();

  // Whether a worker announced an arena by this number, so that region() will not wait.
  bool knows(uint32_t number);
  // The arena that a worker announced by this number. Waits for its message if a result was faster.
  // nullptr once the supervisor or the board is closed.
  std::shared_ptr<Region> region(uint32_t number);

  // Keeps no arena any longer; what leases hold stays. After close().
  void forget_arenas();

  // Kills every process that is still there after `grace_ns`, and ends wait() for good.
  void close(int64_t grace_ns);

 private:
  struct Process {
    os::Fd pidfd;
    os::Fd link;
    bool failed = false;
    bool ready = false;
  };
  // A worker's arena. Once its worker died it is kept until the consumer took in, or let go, every
  // ticket that was posted by then; afterwards only leases keep it. The empty entry says that it
  // was there.
  struct Arena {
    std::shared_ptr<Region> region;
    uint32_t worker = 0;
    bool orphan = false;
    std::array<uint64_t, kMaxLanes> until{};  // by lane
  };
  void hear(uint32_t worker, Event& event);
  void orphan_arenas(uint32_t worker);
  void drop_orphans();
  void bury(uint32_t worker, Event& event);
  void receive_spill(uint32_t worker, int link, int process, const LinkHeader& header);
  bool serve_all_rooms();
  void check_timeouts(Event& event);
  void check_timeouts_of(Board& lane, uint64_t now, Event& event);
  // A thread was abandoned while it writes: its unit stays writing until it stops, or too long.
  struct Leaving {
    Board::Claim claim;
    Call call;
    uint32_t tickets;  // that were claimed in its place; when there are more, the thread has ended
    uint64_t until_ns;
  };
  void end_process(const Board::Claim& claim);
  void abandon_thread(const Board::Claim& claim, uint64_t now);
  void settle_leaving(uint64_t now);
  bool is_writing(const Leaving& thread);
  Call in_hand(const Board::Claim& claim);
  static void too_often(void* self, const Board::Claim& claim);
  bool is_raised(const Call& call) const { return policy_.raise || call.what == kCollating; }
  void give_up(const Board::Claim& claim, const Call& call, ResultKind kind);
  void fail(const Board::Claim& claim, const Call& call, ResultKind kind);

  Board& board_;
  Allocator& arena_;
  Policy policy_;
  os::Poller poller_;
  os::Fd alarm_;
  std::mutex hearing_;  // held while descriptors of processes_ are read from; before mutex_
  std::mutex mutex_;    // of what follows
  std::condition_variable announced_;
  std::vector<Process> processes_;
  std::map<uint32_t, Arena> arenas_;
  bool any_orphans_ = false;
  std::atomic<bool> closed_{false};
  // wait()'s own:
  bool room_pending_ = false;
  // Claims (lane, word) whose workers were killed for a new row.
  std::set<std::pair<uint32_t, uint64_t>> just_poisoned_;
  std::vector<Leaving> leaving_;
  uint64_t next_timeout_check_ = 0;
};

}  // namespace penstock
