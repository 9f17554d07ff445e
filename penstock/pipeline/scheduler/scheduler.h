#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/observe/counters.h"
#include "penstock/observe/trace.h"
#include "penstock/pipeline/scheduler/tuner.h"
#include "penstock/workers/ticket_ring.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

// The consumer's place: the next undelivered ticket.
struct Position {
  uint64_t epoch = 0;
  uint64_t base = 0;  // global batches of this epoch that earlier runs took (another world size)
  uint64_t step = 0;  // this rank's batches since then
  friend bool operator==(const Position&, const Position&) = default;
};

// The tickets of a plan, for the scheduler. Called on the consumer's thread only.
class Tickets {
 public:
  virtual ~Tickets() = default;
  // Number of steps of an epoch, counted from `base`; nullopt: only known after the epoch ran (a
  // stream).
  virtual std::optional<uint64_t> steps(uint64_t epoch, uint64_t base) = 0;
  enum class Described : uint8_t {
    kPosted,
    kEnd,     // the epoch ends before this ticket (only if steps() is nullopt)
    kNotYet,  // not known yet: ask again after ready() is true
    // The ticket cannot be made. poll() returns kFailed when the position is at the ticket.
    kFailed,
  };
  // Fills in rows, owner, stream and explicit indices of the ticket at `at`.
  virtual Described describe(const Position& at, BatchEntry& entry) = 0;
  // After kNotYet: whether describe() may return something else now. The thread that makes this
  // true calls TicketRing::nudge_consumer().
  virtual bool ready() { return true; }
  // The number of streams that must end for the epoch to end; 0: steps() knows the end.
  virtual uint32_t streams() const { return 0; }
  // Whether several workers may make one batch, as far as is known.
  virtual bool divisible() const { return false; }
  // An upper bound on the arena bytes that a ticket uses beside its batch, as far as is known.
  virtual uint64_t input_bytes() const { return 0; }
  // An upper bound on the bytes that a worker uses beside a batch of `batch_bytes` while making it.
  virtual uint64_t work_bytes([[maybe_unused]] uint64_t batch_bytes) const { return 0; }
  // Bytes of the budget that are not used for batches.
  virtual uint64_t spent_bytes() const { return 0; }
  // The number of tickets that may be in flight whatever the budget is.
  virtual uint32_t least() const { return 1; }
};

// The consumer's side of a ticket ring. Posts the tickets of a plan within the bounds of the queue
// and the budget, and delivers finished batches in order (or as they are finished).
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
    uint64_t max_bytes = UINT64_MAX;
    bool ordered = true;
    bool pause_at_epochs = false;  // no batch of the next epoch is made before begin_epoch()
    uint32_t granule_rows = 1;     // rows per granule; 0: chosen per batch (BatchDivision)
    // Calls describe() only in poll(), never while a batch is being delivered. For tickets whose
    // describe() takes long and may be interrupted: then no batch is lost.
    bool describe_in_poll_only = false;
    // Adapts the number of active workers and the queue to the consumer's speed, starting with the
    // values above. REQUIRED: the ring has space for the longest queue.
    std::optional<Tuner::Limits> tuning = std::nullopt;
  };
  enum class Poll { kBatch, kEpochEnd, kWait, kFailed };

  // `discard`: releases the resources of a task's result (packets' blocks, objects).
  Scheduler(TicketRing& ring, Allocator& arena, Tickets& tickets, const Options& options,
            std::function<void(Task&)> discard);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // `epoch`: the consumer's epoch; returns kEpochEnd after the position has left that epoch.
  Poll poll(uint64_t epoch);
  void wait(int64_t timeout_ns);
  // Posts the tickets that there is space for, and wakes workers for them.
  void make_ahead();
  uint64_t in_flight() const { return ring_.posted() - ring_.head() - taken_; }  // tickets
  bool has_space() const { return in_flight() < window(); }
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
  void skip();
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

  uint32_t depth();  // batches that are ready
  const DepthHistory& depths() const { return depths_; }
  uint64_t typical_bytes() const { return batch_bytes_; }
  bool sized() const { return sized_; }  // a batch was delivered
  uint32_t queue() const { return queue_.load(std::memory_order_relaxed); }  // any thread

 private:
  void read_clock_on_asking();
  void tune();
  bool ended(const Position& at) const;  // no ticket of its epoch is left at or after `at`
  void fill();
  void fill_ahead() {
    if (!options_.describe_in_poll_only) fill();
  }
  uint64_t window() const;
  uint64_t fitting(uint64_t left, uint64_t bytes, uint64_t work) const;
  uint32_t granules_of(uint32_t rows) const;
  uint64_t row_ns() const;
  std::optional<uint64_t> candidate();
  void moved_past(const Position& at);
  void clear_current();
  void retire(uint64_t seq);
  void release_memory(BatchEntry& entry);
  void reap();
  void start_epoch_at(const Position& at);

  TicketRing& ring_;
  Allocator& arena_;
  Tickets& tickets_;
  Options options_;
  std::function<void(Task&)> discard_;

  Position position_;
  std::set<uint64_t> ahead_;           // steps of this epoch delivered out of order
  Position next_;                      // the next ticket to post
  bool held_ = true;                   // begin_epoch() was not called yet for next_'s epoch
  std::optional<uint64_t> known_end_;  // steps of next_'s epoch, if describe() returned its end
  std::set<uint32_t> streams_ended_;
  uint64_t version_ = 0;
  uint64_t current_ = 0;
  uint64_t taken_ = 0;        // entries beyond the head that were taken already (unordered)
  uint64_t batch_bytes_ = 0;  // of the largest batch so far
  bool failed_ = false;       // the next ticket cannot be made
  bool undescribed_ = false;  // the next ticket could not be described yet
  bool sized_ = false;        // a batch was delivered; batches that are not arrays have 0 bytes
  uint64_t block_bytes_ = 0;  // memory of the largest batch so far, which had block_rows_ rows
  uint32_t block_rows_ = 0;
  std::vector<uint64_t> withdrawn_;  // withdrawn entries whose tasks still run
  uint64_t asked_ns_ = 0;            // when the consumer asked for a batch; 0: the consumer is busy
  uint64_t given_ns_ = 0;
  bool late_ = false;     // the batch was not ready when the consumer asked for it
  bool quick_ = false;    // the consumer asked for the last batches within microseconds
  uint32_t untimed_ = 0;  // batches since the clock was read
  uint64_t next_depth_ns_ = 0;
  std::atomic<uint32_t> queue_;
  std::optional<Tuner> tuner_;
  uint64_t tuned_ns_ = 0;  // when the tuner last read the counters; their values then follow
  uint64_t tuned_delivered_ = 0;
  uint64_t tuned_busy_ns_ = 0;
  uint64_t held_up_ns_ = 0;            // the consumer's waits for late batches since then
  uint32_t least_ready_ = UINT32_MAX;  // the fewest ready batches since then
  TraceWriter trace_;
  DepthHistory depths_;
};

}  // namespace penstock
