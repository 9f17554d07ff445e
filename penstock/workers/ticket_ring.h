#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/workers/sleeping_workers.h"
#include "penstock/workers/ticket_ring_layout.h"

namespace penstock {

// The tickets in flight: the memory, and what all of its users may do. One consumer posts tickets
// and takes results (RingConsumer); any number of workers, threads or processes, claim tickets
// (RingWorker); a supervisor takes tickets from workers that died or take too long
// (RingSupervisor). The ring is one block of memory without pointers, so processes can share it. A
// process may be killed at any instruction: the single word of a task always says which worker owns
// the task.
//
//   BatchEntry  one batch in flight. Entries form a ring; entry `seq` lives at seq % entries.
//   Task        one granule of an entry, the unit that a worker claims. A whole item is one task.
//   Lane        a ring of entries with its own consumer. A Dataset with parallel maps has one lane
//               for its batches and one per parallel map; the same workers serve all lanes.
//
// States of a task (all in Task::word):
//
//   idle ─> open ─> claimed ─> writing ─> done ─> idle
//
//   - idle -> open:                 RingConsumer::publish
//   - open -> claimed:              RingWorker::claim
//   - claimed -> writing:           begin_result, by that worker
//   - writing -> done:              finish, by that worker
//   - done -> idle:                 RingConsumer::clear
//   - claimed or writing -> open:   RingSupervisor::reopen, when the worker died
//   - claimed -> writing -> done:   RingSupervisor::take_over and finish, when the ticket failed
//
// Invariants
//  1. Only a compare-exchange leaves open, and only to one worker: no ticket is done twice at once.
//  2. One store claims the task and records the worker: a death never loses a ticket.
//  3. The result's bytes are written between writing and done by one worker; the supervisor writes
//     them only after a compare-exchange took the claimed task from the worker.
//  4. posted() - head() <= entries: an entry's place is reused only when its tasks are idle.
//  5. A thread that is about to sleep first announces that (a sleeping bit, LaneHeader::wants),
//  then
//     looks again. A thread that makes progress first publishes the progress, then looks for
//     sleepers. Both are sequentially consistent. A worker that was parked passes a wake-up on to
//     an active worker.
//  6. A task's word never takes the same claimed value twice while a worker may remember the first
//     one, because every reopening increments `attempt`. So a worker can tell that its ticket was
//     taken away.
//  7. The consumer's process believes of the ring only what cannot harm it. A worker that crashes
//     may write any word. So the counts that loops run to, and what the consumer itself wrote into
//     an entry, are read from a private copy (TicketRing::Own); every other number is checked
//     before it is used as an index, a length or a divisor. Nothing in the ring is a pointer of the
//     consumer's process, unless the ring is not shared.
//  8. Nothing depends on what a killed process leaves half done: `reopens` only grows, and reopen()
//     repeats wake-ups that died together with their worker.

class TicketRing {
 public:
  struct Shape {
    uint32_t entries = 16;  // ring size; rounded up to a power of two
    uint32_t granules = 1;  // of an entry, at most
    uint32_t workers = 1;
    uint32_t rows = kMaxGranuleRows;   // of a granule
    std::vector<uint32_t> inner = {};  // ring sizes of further lanes; an entry there is one granule
  };
  // shared: in a memfd that other processes may open.
  static std::unique_ptr<TicketRing> create(const Shape& shape, bool shared);
  static std::unique_ptr<TicketRing> open(int fd);  // takes its own duplicate
  ~TicketRing();
  TicketRing(const TicketRing&) = delete;
  TicketRing& operator=(const TicketRing&) = delete;

  // A TicketRing object is one lane; the first lane owns the memory of all. All lanes share the
  // workers with their places, sleeping, closing and the ledger; everything else belongs to one
  // lane. REQUIRED: lane < lanes(), and this is the first lane.
  uint32_t lanes() const { return static_cast<uint32_t>(inner_.size()) + 1; }
  TicketRing& lane(uint32_t lane) { return lane == 0 ? *this : *inner_[lane - 1]; }
  uint32_t number() const { return lane_; }  // among the lanes

  int fd() const { return file_.get(); }  // -1: not shared
  bool shared() const { return static_cast<bool>(file_); }
  uint32_t entries() const { return entries_; }
  uint32_t granules() const { return granules_; }
  uint32_t workers() const { return workers_; }
  WorkerPlace& place(uint32_t worker) { return places_[worker]; }
  SleepingWorkers& sleepers() const { return *sleepers_; }
  LaneHeader& header() { return *header_; }  // for the ends; others have head(), posted(), ...
  Ledger ledger(uint32_t worker, uint32_t arena);  // of all workers' arenas
  // The counter of the arena with this number, which uses the worker's entry in the ledger. Keeps
  // the ring's memory alive, because leases may outlive the ring.
  BlocksInUse in_use(uint32_t worker, uint32_t arena);
  // The bytes that the workers' arenas may hold together, even if never all in use at once.
  void expect_in_use(uint64_t bytes);
  // The worker's counters. A wait for a ticket that has not ended counts up to the last delivered
  // batch, because the consumer's own figures end there. Any thread.
  WorkerFigures figures(uint32_t worker);
  ConsumerCounters& consumer() { return header_->consumer; }
  TraceRing& consumer_trace() { return header_->consumer_trace; }

  // ---- entries and tasks ----
  // The lowest entry not yet cleared, and one past the newest.
  uint64_t head() const { return head_->load(std::memory_order_acquire); }
  uint64_t posted() const { return posted_->load(std::memory_order_seq_cst); }
  // As posted(), but at most a ring's length past head(), whatever the words say. For workers.
  uint64_t end_of_work() const { return std::min(posted(), head() + entries_); }
  // By the consumer. Sequentially consistent, see invariant 5.
  void set_head(uint64_t head);
  void set_posted(uint64_t posted);
  // Writes the counts into the ring again, where a dead worker has overwritten them.
  void repair_counts();
  // The oldest entry that may still be worked on. Withdrawn entries are older than head().
  uint64_t oldest() const;
  BatchEntry& entry_at(uint64_t seq) const { return entry_ring_[seq & (entries_ - 1)]; }
  uint32_t granules_at(uint64_t seq) const {
    if (own_ != nullptr) return posted_at(seq).granules.load(std::memory_order_relaxed);
    return std::min(entry_at(seq).granules.load(std::memory_order_relaxed), granules_);
  }
  // The entry as it was posted. REQUIRED: this process created the ring.
  PostedEntry& posted_at(uint64_t seq) const { return own_->entries[seq & (entries_ - 1)]; }
  Task& task_at(uint64_t seq, uint32_t granule) const {
    return task_ring_[(seq & (entries_ - 1)) * granules_ + granule];
  }
  bool ready(uint64_t seq) const;  // all of its tasks are done
  bool idle(uint64_t seq) const;   // all of its tasks are idle
  // BatchEntry::layout_state: lap << 18 | proposer << 8 | state. A worker that comes too late sees
  // another lap of the ring: its place belongs to another entry now.
  uint32_t layout_word(uint64_t seq, LayoutState state, uint32_t proposer = 0) const {
    return static_cast<uint32_t>(seq / entries_) << 18 | proposer << 8 |
           static_cast<uint32_t>(state);
  }
  // Moves the entry's layout to `state`. `awaited`: workers may sleep until then, and are woken.
  void set_layout_state(uint64_t seq, LayoutState state, bool awaited = true);

  // ---- a claimed task: its worker, or the supervisor in its place ----
  struct Claim {
    BatchEntry* entry = nullptr;
    Task* task = nullptr;
    uint64_t seq = 0;
    uint32_t granule = 0;
    uint32_t worker = 0;
    uint32_t losses = 0;
    uint64_t word = 0;  // of the task, as claimed
    uint32_t lane = 0;
  };
  // The claim that the word of a claimed or writing task stands for.
  Claim claim_in(uint64_t seq, uint32_t granule, uint64_t word) const;
  // False, and false for ever: the supervisor took the ticket away after a timeout.
  bool holds(const Claim& claim) const {
    return claim.task->word.load(std::memory_order_seq_cst) == claim.word;
  }
  // False: the ticket was taken away; drop the result.
  bool begin_result(const Claim& claim);
  void finish(const Claim& claim);
  // How a call that must not be tried again ended: in which worker, and whether the call took too
  // long (kTimeout) or killed the worker (kLost).
  struct Ending {
    uint32_t worker;
    ResultKind kind;
  };
  std::optional<Ending> ending(const Claim& claim, const Call& call) const;
  bool any_poisoned(const Claim& claim) const {
    return claim.task->poisoned.load(std::memory_order_acquire) != 0;
  }
  // The task's list of such calls; those past Task::poisoned belong to an earlier entry. A page of
  // it exists only once it was reserved.
  std::span<Poisoned> poisoned_of(const Claim& claim) const;
  // Reserves the pages, so that later writes cannot run out of memory. False: there is none.
  bool reserve(void* from, size_t bytes);

  // A task of any lane as one number, for messages. Call on the first lane only.
  uint64_t number_of(const Claim& claim) {
    return uint64_t{claim.lane} << 56 | (claim.seq * lane(claim.lane).granules_ + claim.granule);
  }
  struct Address {
    TicketRing& lane;
    uint64_t seq;
    uint32_t granule;
  };
  Address address_of(uint64_t number) {
    TicketRing& of = lane(std::min<uint32_t>(static_cast<uint32_t>(number >> 56), lanes() - 1));
    const uint64_t task = number & ((uint64_t{1} << 56) - 1);
    return {of, task / of.granules_, static_cast<uint32_t>(task % of.granules_)};
  }

  // ---- any thread ----
  // What the consumer waits for beside an entry's seq; see RingConsumer::wait.
  static constexpr uint64_t kAnySeq = UINT64_MAX - 1;
  // Wakes the consumer whatever it waits for.
  void nudge_consumer();
  void close();  // closes all lanes; call on the first lane only
  bool closed() const { return ring_->closed.load(std::memory_order_acquire) != 0; }

 private:
  TicketRing() = default;
  void lay_out(std::byte* base);
  size_t lay_out_lane(std::byte* base, size_t at);
  void shape_lanes(std::span<const uint32_t> inner);
  void populate();
  void map();
  void keep_own();

  os::Fd file_;
  uint32_t lane_ = 0;
  std::vector<std::unique_ptr<TicketRing>> inner_;
  std::shared_ptr<std::byte> base_;
  size_t bytes_ = 0;
  uint32_t entries_ = 0, granules_ = 0, workers_ = 0;
  uint32_t max_poisoned_ = kMaxGranuleRows;  // calls of a task
  RingHeader* ring_ = nullptr;
  LaneHeader* header_ = nullptr;
  WorkerPlace* places_ = nullptr;
  BatchEntry* entry_ring_ = nullptr;
  Task* task_ring_ = nullptr;
  Poisoned* poisoned_ring_ = nullptr;
  std::shared_ptr<SleepingWorkers> sleepers_;  // of all lanes
  // The creator's copy of what the consumer writes; see invariant 7.
  struct Own {
    std::atomic<uint64_t> head{0}, posted{0};
    std::vector<PostedEntry> entries;
  };
  std::unique_ptr<Own> own_;  // nullptr: another process created the ring
  const std::atomic<uint64_t>*head_ = nullptr, *posted_ = nullptr;  // own_'s, or header_'s
};

}  // namespace penstock
