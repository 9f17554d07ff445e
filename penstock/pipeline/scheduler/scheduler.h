#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/observe/counters.h"
#include "penstock/pipeline/scheduler/pace.h"
#include "penstock/pipeline/scheduler/tickets.h"
#include "penstock/pipeline/scheduler/tuner.h"
#include "penstock/pipeline/scheduler/window.h"
#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// Posts the tickets of a plan, as many as TicketWindow allows, and delivers finished batches in
// order (or as they are finished). ConsumerPace measures the consumer and tunes the window.
//
// What to do after poll():
// - kBatch: take the results of current()'s tasks, then deliver(). The position advances, and new
//   tickets are posted.
// - kEpochEnd: begin_epoch() or seek().
// - kWait: wait(), or work in line on next_open().
// - kFailed: the next ticket cannot be made.
//
// Threads: one at a time for all methods.
class Scheduler {
 public:
  struct Options {
    uint32_t queue = 10;   // batches finished and not yet delivered
    uint32_t workers = 1;  // each may have one more pending batch
    bool ordered = true;
    bool pause_at_epochs = false;  // no batch of the next epoch is made before begin_epoch()
    uint32_t granule_rows = 1;     // rows per granule; 0: chosen per batch (BatchDivision)
    // Calls describe() only in poll(), never while a batch is being delivered. For tickets whose
    // describe() takes long and may be interrupted: then no batch is lost.
    bool describe_in_poll_only = false;
    // At first one ticket per worker is in flight, then one more with each delivered batch. For
    // one of many schedulers of a budget: the first does not take what others need a moment later.
    bool slow_start = false;
    // Adapts the number of active workers and the queue to the consumer's speed, starting with the
    // values above. REQUIRED: the ring has space for the longest queue.
    std::optional<Tuner::Limits> tuning = std::nullopt;
    // Called on any thread when there are bytes that the scheduler waits for: call poll() or
    // make_ahead(). Empty: wakes wait(). As for ByteBudget::Holder.
    std::function<void()> on_grant = nullptr;
  };
  enum class Poll { kBatch, kEpochEnd, kWait, kFailed };

  // `budget`: of the batches in flight; must outlive this. `discard`: releases the resources of a
  // task's result (packets' blocks, objects).
  Scheduler(TicketRing& ring, Allocator& arena, Tickets& tickets, ByteBudget& budget,
            const Options& options, std::function<void(Task&)> discard);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // `epoch`: the consumer's epoch; returns kEpochEnd after the position has left that epoch.
  Poll poll(uint64_t epoch);
  void wait(int64_t timeout_ns);
  // Posts the tickets that there is space for, and wakes workers for them. Gives back the bytes of
  // tickets that are no longer in flight.
  void make_ahead();
  uint64_t in_flight() const { return ring_.posted() - ring_.head() - taken_; }  // tickets
  // No more tickets of this epoch will be posted.
  bool exhausted() const {
    return held_ || failed_ || next_.epoch != position_.epoch || ended(next_);
  }
  // After kBatch: the entry whose tasks are to be taken.
  BatchEntry& current() { return ring_.entry_at(current_); }
  uint64_t current_seq() const { return current_; }
  // The first granule of the current batch that failed.
  std::optional<uint32_t> failed_granule();
  // The current batch's memory, filled by the workers. The caller owns the lease.
  Lease take_rows();
  // The current batch was passed to the user.
  void deliver(uint64_t bytes, uint64_t samples);
  // The current batch is lost; the caller has counted the loss.
  void skip() { leave_current(); }
  // The current ticket has no batch, because its stream ended (ResultKind::kEnd). The end of the
  // last stream ends the epoch.
  void end_stream();
  // The current batch's error was raised. The position stays; all tickets in flight are withdrawn.
  void fail();

  // The entry that poll() waits for, for working in line; nullopt: nothing is posted.
  std::optional<uint64_t> next_open();

  const Position& position() const { return position_; }
  // Steps beyond the position that were delivered already (unordered).
  const std::set<uint64_t>& ahead() const { return ahead_; }
  // Starts making the epoch at the position (needed with pause_at_epochs).
  void begin_epoch();
  // Withdraws all tickets in flight and continues at `to`.
  void seek(const Position& to, std::set<uint64_t> ahead = {});
  // Waits until no worker runs a withdrawn ticket. Needed before the dataset changes. False: not
  // yet, after `timeout_ns` (< 0: no timeout) or a wake-up; call again.
  bool settle(int64_t timeout_ns);
  // Discards results that were not taken, which may own objects outside of the arena. For shutdown:
  // the ring must be closed and its workers ended.
  void drain();
  void set_version(uint64_t version) { version_ = version; }
  uint64_t version() const { return version_; }

  uint32_t depth() const { return pace_.depth(); }  // batches that are ready
  const DepthHistory& depths() const { return pace_.depths(); }
  uint64_t typical_bytes() const { return window_.batch_bytes(); }
  bool sized() const { return window_.sized(); }    // a batch was delivered
  uint32_t queue() const { return pace_.queue(); }  // any thread

 private:
  bool ended(const Position& at) const;  // no ticket of its epoch is left at or after `at`
  uint64_t window() const { return window_.size(pace_.queue(), pace_.workers()); }
  enum class Filled : uint8_t { kDone, kNoBytes };
  void fill();
  Filled post_tickets();
  void fill_ahead() {
    if (!options_.describe_in_poll_only) fill();
  }
  bool next_to_post();
  Tickets::Described post();
  std::optional<uint64_t> candidate();
  void take_up(uint64_t seq);
  void moved_past(const Position& at);
  void clear_current();
  Position leave_current();
  void retire(uint64_t seq);
  void release_memory(BatchEntry& entry);
  void reap();
  void start_epoch_at(const Position& at);

  TicketRing& ring_;
  RingConsumer end_;
  Allocator& arena_;
  Tickets& tickets_;
  const Options options_;
  std::function<void(Task&)> discard_;
  TicketWindow window_;
  ConsumerPace pace_;

  Position position_;
  std::set<uint64_t> ahead_;           // steps of this epoch delivered out of order
  Position next_;                      // the next ticket to post
  bool held_ = true;                   // begin_epoch() was not called yet for next_'s epoch
  std::optional<uint64_t> known_end_;  // steps of next_'s epoch, if describe() returned its end
  std::set<uint32_t> streams_ended_;
  uint64_t version_ = 0;
  uint64_t current_ = 0;
  uint64_t taken_ = 0;               // entries beyond the head that were taken already (unordered)
  bool failed_ = false;              // the next ticket cannot be made
  bool undescribed_ = false;         // the next ticket could not be described yet
  std::vector<uint64_t> withdrawn_;  // withdrawn entries whose tasks still run
};

}  // namespace penstock
