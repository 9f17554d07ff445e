#pragma once

#include <cstdint>
#include <functional>

#include "penstock/workers/lock_trial.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// The consumer's end of one lane: posts tickets, waits for results, and wakes workers. One thread
// at a time.
class RingConsumer {
 public:
  explicit RingConsumer(TicketRing& lane) : ring_(lane) {}
  RingConsumer(const RingConsumer&) = delete;
  RingConsumer& operator=(const RingConsumer&) = delete;

  // ---- entries ----
  bool can_post() const;  // the ring has a free entry whose tasks are idle
  // The entry to post next: fill it in, then publish it.
  BatchEntry& next_entry();
  void publish(BatchEntry& entry);
  // The entry, with all that it was posted with, whatever workers have written there since.
  BatchEntry& own_entry(uint64_t seq);
  // Done tasks become idle again. advance_head moves past the entries that were cleared.
  void clear(uint64_t seq);
  void advance_head(uint64_t head);
  // From now on the entry gets no memory. Waits while a server is allocating some.
  void close_layout(uint64_t seq);
  // Takes an entry back: its open tasks become idle, claimed ones stay with their workers. True:
  // all of its tasks are idle or done now.
  bool withdraw(uint64_t seq);

  // ---- waiting ----
  // Sleeps until entry `seq` may be ready. TicketRing::kAnySeq: until any entry of the lowest
  // entry's epoch may be ready, or the ring has a free entry. Where batches take microseconds and
  // the consumer was woken just before, waits up to 0.1 ms longer for several ready batches.
  // `also`: a further condition that ends the wait. The thread that makes it true must call
  // nudge_consumer() afterwards.
  void wait(uint64_t seq, int64_t timeout_ns, const std::function<bool()>& also = {});
  // Sleeps until the withdrawn entry `seq` may be at rest.
  void wait_at_rest(uint64_t seq, int64_t timeout_ns);
  // Wakes workers for posted tickets. Small tickets are collected first, unless the consumer is
  // about to wait.
  void wake_workers(bool consumer_waits);

 private:
  template <class There>
  bool sleep_until(uint64_t wants, int64_t timeout_ns, There there);
  bool progress() const;
  uint64_t batches_to_wait_for(uint64_t seq) const;
  void look_at_lock();
  uint64_t open_tasks(uint64_t posted, uint64_t hint) const;
  uint64_t typical_ticket_ns() const;

  TicketRing& ring_;
  LockTrial lock_trial_;
  uint64_t waited_until_ns_ = 0;  // when the consumer was last woken
};

}  // namespace penstock
