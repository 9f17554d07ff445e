#pragma once

#include <atomic>
#include <cstdint>

#include "penstock/workers/ticket_ring_layout.h"

namespace penstock {

// Sleeping and waking of a ring's workers, for all lanes: which workers sleep, which are parked,
// and which of them a wake-up goes to.
//
// A worker sleeps on the futex of its own place, with its sleeping bit set. It sets the bit, looks
// for work once more, and only then sleeps. A poster first publishes its work and then looks at the
// bits. The thread that clears a bit sends the wake-up.
//
// A worker is active or parked. A parked worker sleeps without a bit until it is active again.
//
// Any thread, of any process that has opened the ring.
class SleepingWorkers {
 public:
  SleepingWorkers(RingHeader& ring, WorkerPlace* places, uint32_t workers, bool shared)
      : ring_(ring), places_(places), workers_(workers), shared_(shared) {}
  SleepingWorkers(const SleepingWorkers&) = delete;
  SleepingWorkers& operator=(const SleepingWorkers&) = delete;

  // ---- a worker about itself ----
  // The word that a wake-up changes. Read it before looking for work.
  uint32_t event(uint32_t worker) const {
    return places_[worker].event.load(std::memory_order_acquire);
  }
  void announce(uint32_t worker);  // sets the sleeping bit
  void withdraw(uint32_t worker);  // clears it
  // Sleeps unless a wake-up came since `seen`.
  void sleep(uint32_t worker, uint32_t seen);

  // ---- who sleeps ----
  // The worker sleeps, or will look for work once more and then sleep.
  bool asleep(uint32_t worker) const;
  // It serves tickets, and is not asleep.
  bool awake(uint32_t worker) const;
  bool any_asleep() const;

  // ---- waking ----
  bool wake(uint32_t worker);      // false: it does not sleep
  void wake_some(uint64_t count);  // those with the lowest numbers
  void wake_all() { wake_some(workers_); }
  // Wakes every worker, parked ones too, whether its bit is set or not: it looks for messages, and
  // whether the ring is closed.
  void rouse(uint32_t worker);
  void rouse_all();

  // ---- parking ----
  uint32_t active() const {
    return std::min(ring_.active.load(std::memory_order_seq_cst), workers_);
  }
  // Parks the workers from number `count` on. A parked worker finishes its ticket, then claims no
  // ticket of any lane and sleeps until it is active again or the ring closes. At least one worker
  // stays active. REQUIRED: no entry has an owner.
  void set_active(uint32_t count);

  // ---- workers that share a lock ----
  // Workers share a lock while they work (threads that run Python). Tickets of microseconds then
  // wake one worker only, because several would only pass the lock back and forth.
  void set_exclusive(bool exclusive) { exclusive_.store(exclusive, std::memory_order_relaxed); }
  bool exclusive() const { return exclusive_.load(std::memory_order_relaxed); }
  // The last result of the consumer's LockTrial; false: one worker does all tiny tickets.
  void set_all_work(bool all) { all_work_.store(all, std::memory_order_seq_cst); }
  bool all_work() const { return all_work_.load(std::memory_order_seq_cst); }
  // One worker does all the work at present; the others are spare.
  bool one_suffices() const { return exclusive() && !all_work(); }

 private:
  RingHeader& ring_;
  WorkerPlace* places_;
  uint32_t workers_;
  bool shared_;  // with other processes
  std::atomic<bool> exclusive_{false};
  std::atomic<bool> all_work_{true};
};

}  // namespace penstock
