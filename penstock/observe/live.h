#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/observe/counters.h"
#include "penstock/observe/latency_histogram.h"
#include "penstock/observe/trace.h"

namespace penstock {

// How many batches had 1, 2 to 3, 4 to 7, ... messages. The last element also counts larger ones.
using BatchSizes = std::array<uint64_t, 25>;
inline size_t size_bucket(uint64_t messages) {  // messages >= 1
  const auto bucket = static_cast<size_t>(std::bit_width(messages)) - 1;
  return bucket < BatchSizes().size() ? bucket : BatchSizes().size() - 1;
}

// The batches of a live stream that were given out in an interval. Times are nanoseconds.
struct LiveInterval {
  uint64_t begin_ns = 0;  // of the first batch
  uint64_t end_ns = 0;    // of the last one
  uint64_t batches = 0;
  uint64_t messages = 0;
  uint64_t largest_batch = 0;
  uint64_t sum_age_ns = 0;  // of all messages, when their predictions were made
  uint64_t longest_age_ns = 0;
};

// What was taken from a live stream, in bounded memory. A value: not synchronised.
//
// The history has one interval of each 10 ms. When it is full, two neighbours become one, and from
// then on intervals are twice as long.
class LiveCounts {
 public:
  static constexpr size_t kCapacity = 1024;

  // A batch is asked for; it is here, or none came in time (0 messages). The time between a batch
  // and the next question is that of the training step. Nothing is counted before the first batch.
  void asked(uint64_t now_ns);
  void given(uint64_t now_ns, uint64_t messages, uint64_t bytes);
  // The predictions of the last batch were made.
  void predicted(std::span<const uint64_t> ages_ns);

  const ConsumerFigures& figures() const { return figures_; }
  const BatchSizes& batch_sizes() const { return sizes_; }
  uint64_t largest_batch() const { return largest_; }
  const LatencyHistogram& ages() const { return ages_; }
  const std::vector<LiveInterval>& history() const { return history_; }
  std::vector<TraceEvent> trace() const { return events_of(*ring_); }

 private:
  ConsumerFigures figures_{};
  BatchSizes sizes_{};
  uint64_t largest_ = 0;
  LatencyHistogram ages_;
  std::vector<LiveInterval> history_;
  uint64_t interval_ns_ = 10'000'000;
  uint64_t asked_ns_ = 0;
  uint64_t given_ns_ = 0;  // 0: there is no batch at work
  std::unique_ptr<TraceRing> ring_ = std::make_unique<TraceRing>();
  TraceWriter writer_{ring_.get()};
};

}  // namespace penstock
