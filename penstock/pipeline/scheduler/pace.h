#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "penstock/observe/counters.h"
#include "penstock/observe/trace.h"
#include "penstock/pipeline/scheduler/tickets.h"
#include "penstock/pipeline/scheduler/tuner.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// The consumer's pace: when it asks for a batch, how long it waits for one, and how long it works
// on one. Writes the consumer's counters and trace, and adapts the number of active workers and the
// queue to the pace (Tuner). The consumer's thread.
//
// States: the consumer is busy (the initial one) -> asked -> it has a batch, which is busy again.
// Where batches take microseconds, most of them are taken without reading the clock: the consumer
// stays busy.
class ConsumerPace {
 public:
  ConsumerPace(TicketRing& ring, const Tuner::Settings& start,
               const std::optional<Tuner::Limits>& tuning);
  ConsumerPace(const ConsumerPace&) = delete;
  ConsumerPace& operator=(const ConsumerPace&) = delete;

  // The consumer asks for the batch at this position, unless it has asked already. The time before
  // this is the consumer's. `batch_bytes`: 0: unknown.
  void ask(const Position& at, uint64_t batch_bytes);
  bool asked() const { return asked_ns_ != 0; }
  // The clock need not be read for the next batch, if that is ready.
  bool untimed() const;
  void skip_clock() { ++untimed_; }
  // The batch was not ready when the consumer asked for it.
  void late() { late_ = true; }
  // The consumer got the batch at this position. Does nothing for a batch that was not timed.
  void give(const Position& at);
  // The consumer got an error instead.
  void give_error();

  uint32_t workers() const { return workers_; }
  uint32_t queue() const { return queue_.load(std::memory_order_relaxed); }  // any thread
  // The tuned queue may be shorter than the batches for which workers are usually woken.
  bool tunes_queue() const { return tunes_queue_; }
  uint32_t depth() const;  // batches that are ready
  const DepthHistory& depths() const { return depths_; }

 private:
  void tune(uint64_t batch_bytes);

  TicketRing& ring_;
  uint32_t workers_;
  std::atomic<uint32_t> queue_;
  std::optional<Tuner> tuner_;
  const bool tunes_queue_;

  uint64_t asked_ns_ = 0;  // when the consumer asked for a batch; 0: the consumer is busy
  uint64_t given_ns_ = 0;
  bool late_ = false;
  bool sized_ = false;    // the tuner knows the size of a batch
  bool quick_ = false;    // the consumer asked for the last batches within microseconds
  uint32_t untimed_ = 0;  // batches since the clock was read
  uint64_t next_depth_ns_ = 0;
  uint64_t tuned_ns_ = 0;  // when the tuner last read the counters; their values then follow
  uint64_t tuned_delivered_ = 0;
  uint64_t tuned_busy_ns_ = 0;
  uint64_t held_up_ns_ = 0;            // the consumer's waits for late batches since then
  uint32_t least_ready_ = UINT32_MAX;  // the fewest ready batches since then
  TraceWriter trace_;
  DepthHistory depths_;
};

}  // namespace penstock
