#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "penstock/base/os.h"
#include "penstock/workers/lock_trial.h"
#include "penstock/workers/ticket_ring_layout.h"

namespace penstock {

// The tickets in flight. One consumer posts tickets and takes results; any number of workers
// (threads or processes) claim tickets. The ring is one block of memory without pointers, so
// processes can share it. A process may be killed at any instruction: the single word of a task
// always says which worker owns the task.
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
//   - idle -> open:                 publish, by the consumer
//   - open -> claimed:              claim, by a worker
//   - claimed -> writing:           begin_result, by that worker
//   - writing -> done:              finish, by that worker
//   - done -> idle:                 clear, by the consumer
//   - claimed or writing -> open:   reopen, by the supervisor, when the worker died
//   - claimed -> writing -> done:   take_over and finish, by the supervisor, when the ticket failed
//
// Invariants
//  1. Only a compare-exchange leaves open, and only to one worker: no ticket is done twice at once.
//  2. One store claims the task and records the worker: a death never loses a ticket.
//  3. The result's bytes are written between writing and done by one worker; the supervisor writes
//     them only after a compare-exchange took the claimed task from the worker.
//  4. posted() - head() <= entries: an entry's place is reused only when its tasks are idle.
//  5. A thread that is about to sleep first announces that (a sleeping bit, Header::wants), then
//     looks again. A thread that makes progress first publishes the progress, then looks for
//     sleepers. Both are sequentially consistent. A worker that was parked passes a wake-up on to
//     an active worker.
//  6. A task's word never takes the same claimed value twice while a worker may remember the first
//     one, because every reopening increments `attempt`. So a worker can tell that its ticket was
//     taken away.
//  7. Nothing depends on what a killed process leaves half done: `reopens` only grows, and reopen()
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
  uint32_t entries() const { return entries_; }
  uint32_t granules() const { return granules_; }
  uint32_t workers() const { return workers_; }
  WorkerPlace& place(uint32_t worker) { return places_[worker]; }
  Ledger ledger(uint32_t worker, uint32_t arena);  // of all workers' arenas
  // The counter of the arena with this number, which uses the worker's entry in the ledger. Keeps
  // the ring's memory alive, because leases may outlive the ring.
  BlocksInUse in_use(uint32_t worker, uint32_t arena);
  // The worker's counters. A wait for a ticket that has not ended counts up to the last delivered
  // batch, because the consumer's own figures end there. Any thread.
  WorkerFigures figures(uint32_t worker);
  ConsumerCounters& consumer();
  TraceRing& consumer_trace();

  // ---- the consumer (one thread at a time) ----
  uint64_t head() const;    // lowest entry not yet cleared
  uint64_t posted() const;  // one past the newest
  bool can_post() const;    // the ring has a free entry whose tasks are idle
  // The entry to post next: fill it in, then publish it.
  BatchEntry& next_entry();
  void publish(BatchEntry& entry);
  BatchEntry& entry_at(uint64_t seq) { return entry_ring_[seq & (entries_ - 1)]; }
  uint32_t granules_at(uint64_t seq) const {
    return entry_ring_[seq & (entries_ - 1)].granules.load(std::memory_order_relaxed);
  }
  Task& task_at(uint64_t seq, uint32_t granule) {
    return task_ring_[(seq & (entries_ - 1)) * granules_ + granule];
  }
  bool ready(uint64_t seq);  // all of its tasks are done
  bool idle(uint64_t seq);   // all of its tasks are idle
  // Done tasks become idle again. advance_head moves past the entries that were cleared.
  void clear(uint64_t seq);
  // Moves the entry's layout to `state`. `awaited`: workers may sleep until then, and are woken.
  void set_layout_state(uint64_t seq, LayoutState state, bool awaited = true);
  // From now on the entry gets no memory. Waits while a server is allocating some.
  void close_layout(uint64_t seq);
  void advance_head(uint64_t head);
  // Takes an entry back: its open tasks become idle, claimed ones stay with their workers. True:
  // all of its tasks are idle or done now.
  bool withdraw(uint64_t seq);
  // Sleeps until entry `seq` may be ready. kAnySeq: until any entry of the lowest entry's epoch may
  // be ready, or the ring has a free entry. Where batches take microseconds and the consumer was
  // woken just before, waits up to 0.1 ms longer for several ready batches.
  static constexpr uint64_t kAnySeq = UINT64_MAX - 1;
  // `also`: a further condition that ends the wait. The thread that makes it true must call
  // nudge_consumer() afterwards.
  void consumer_wait(uint64_t seq, int64_t timeout_ns, const std::function<bool()>& also = {});
  // Sleeps until the withdrawn entry `seq` may be at rest.
  void consumer_wait_at_rest(uint64_t seq, int64_t timeout_ns);
  // Wakes workers for posted tickets. Small tickets are collected first, unless the consumer is
  // about to wait.
  void wake_workers(bool consumer_waits);
  // Workers share a lock while they work (threads that run Python). Tickets of microseconds then
  // wake one worker only, because several would only pass the lock back and forth.
  void set_exclusive(bool exclusive);
  // Parks the workers from number `count` on. A parked worker finishes its ticket, then claims no
  // ticket of any lane and sleeps, without a sleeping bit, until it is active again or the ring
  // closes. At least one worker stays active. REQUIRED: no entry has an owner.
  void set_active(uint32_t count);
  // The worker to wake first: the one that made the batch just taken, because the memory of that
  // batch goes back to this worker's arena.
  void wake_first(uint32_t worker) { wake_first_.store(worker, std::memory_order_relaxed); }

  // The bytes that the workers' arenas may hold together, even if never all in use at once.
  void expect_in_use(uint64_t bytes);

  // ---- a worker ----
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
  // `cursor`: the task at which this worker looks first; starts at 0.
  bool claim(uint32_t worker, uint64_t& cursor, Claim& out);
  // Claims an open task of that entry: for the consumer working in line.
  bool claim_of(uint32_t worker, uint64_t seq, Claim& out);
  // False, and false for ever: the supervisor took the ticket away after a timeout.
  bool holds(const Claim& claim) const {
    return claim.task->word.load(std::memory_order_seq_cst) == claim.word;
  }
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
  // False: the ticket was taken away; drop the result.
  bool begin_result(const Claim& claim);
  void finish(const Claim& claim);
  // Sleeps until there may be work in any lane, or the ring closes. Call on the first lane only.
  // `cursor`: common to all lanes. `since`, in ns: when the worker began to wait for a ticket, for
  // figures(), unless it is parked or spare; 0: the wait is not counted.
  void wait_for_work(uint32_t worker, uint64_t& cursor, uint64_t since = 0);
  // Whether the worker gets no ticket although some are open: one worker alone does tiny tickets
  // under a shared lock sooner (LockTrial). Call on the first lane only.
  bool spare(uint32_t worker) const;
  bool one_worker_suffices()
      const;  // one worker does all the work at present; the others are spare
  // The worker sleeps, or will look for work once more and then sleep.
  bool asleep(uint32_t worker) const;

  // ---- the supervisor ----
  // Reopens the tasks that the dead `worker` had claimed; returns how many. A task that was lost
  // `most` times is passed to fail_after_losses(claim), which has to fail it (see take_over).
  // Withdrawn tasks become done instead.
  uint32_t reopen(uint32_t worker, uint32_t most, void (*fail_after_losses)(void*, const Claim&),
                  void* of);
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
  // The claim that the word of a claimed or writing task stands for.
  Claim claim_in(uint64_t seq, uint32_t granule, uint64_t word);
  // Takes a claimed task from its worker. The caller then writes the result and calls finish.
  bool take_over(const Claim& claim);
  void reopen_task(const Claim& claim, uint32_t losses);
  // Marks a call that must not be tried again, because it timed out (`kind` kTimeout) or killed its
  // worker (kLost). False: the call was marked before, or no more calls can be marked.
  bool poison(const Claim& claim, const Call& call, ResultKind kind);
  // The oldest entry that may still be worked on. Withdrawn entries are older than head().
  uint64_t oldest() const;

  // ---- any thread ----
  uint32_t active() const;  // workers
  // A ticket's time in the worker that was quickest lately; UINT64_MAX: not known yet.
  uint64_t typical_ticket_ns() const;
  void close();  // closes all lanes; call on the first lane only
  bool closed() const;
  // Wakes the consumer whatever it waits for.
  void nudge_consumer();

  // BatchEntry::layout_state: lap << 18 | proposer << 8 | state. A worker that comes too late sees
  // another lap of the ring: its place belongs to another entry now.
  uint32_t layout_word(uint64_t seq, LayoutState state, uint32_t proposer = 0) const {
    return static_cast<uint32_t>(seq / entries_) << 18 | proposer << 8 |
           static_cast<uint32_t>(state);
  }

 private:
  struct Header;
  TicketRing() = default;
  void lay_out(std::byte* base);
  std::span<Poisoned> poisoned_of(const Claim& claim) const;
  size_t lay_out_rings(std::byte* base, size_t at);
  void shape_lanes(std::span<const uint32_t> inner);
  void populate();
  bool there(void* from, size_t bytes);
  void map();
  bool try_claim(Task& task, uint64_t word, uint32_t worker, uint64_t seq, uint32_t granule,
                 Claim& out);
  bool progress();
  bool open_for(uint32_t worker);
  bool awake(uint32_t worker) const;
  template <class There>
  bool sleep_until(uint64_t wants, int64_t timeout_ns, There there);
  uint64_t batches_to_wait_for(uint64_t seq) const;
  void look_at_lock();
  uint64_t open_tasks(uint64_t posted, uint64_t hint) const;
  bool wake_one(uint32_t worker);
  void wake_some(uint64_t count);

  os::Fd file_;
  uint32_t lane_ = 0;
  std::vector<std::unique_ptr<TicketRing>> inner_;
  std::shared_ptr<std::byte> base_;
  size_t bytes_ = 0;
  uint32_t entries_ = 0, granules_ = 0, workers_ = 0;
  uint32_t max_poisoned_ = kMaxGranuleRows;  // calls of a task
  Header* header_ = nullptr;
  Header* common_ = nullptr;  // the first lane's
  WorkerPlace* places_ = nullptr;
  BatchEntry* entry_ring_ = nullptr;
  Task* task_ring_ = nullptr;
  Poisoned* poisoned_ring_ = nullptr;
  std::atomic<bool> exclusive_{false};
  std::atomic<uint32_t> wake_first_{0};  // in the process that wakes workers
  std::atomic<bool> all_work_{true};     // the last result of lock_trial_; false: most are spare
  LockTrial lock_trial_;                 // used by the consumer only
  uint64_t waited_until_ns_ = 0;         // when the consumer was last woken; its own, too
};

}  // namespace penstock
