#include "penstock/pipeline/scheduler/pace.h"

#include <algorithm>
#include <utility>

#include "penstock/base/clock.h"

namespace penstock {

ConsumerPace::ConsumerPace(TicketRing& ring, const Tuner::Settings& start,
                           const std::optional<Tuner::Limits>& tuning)
    : ring_(ring),
      workers_(start.workers),
      queue_(start.queue),
      tunes_queue_(tuning && tuning->queue),
      trace_(&ring.consumer_trace()) {
  if (tuning) tuner_.emplace(*tuning, start);
}

// For quick batches the clock is read only once for several, because reading it would be a
// noticeable part of the time. The batches in between were ready when the consumer asked.
bool ConsumerPace::untimed() const { return !asked() && quick_ && untimed_ + 1 < kUntimed; }

void ConsumerPace::ask(const Position& at, uint64_t batch_bytes) {
  if (asked()) return;
  asked_ns_ = now_ns();
  ConsumerCounters& counters = ring_.consumer();
  if (given_ns_ == 0) {
    counters.first_ns.set(asked_ns_);
  } else {
    counters.busy_ns.add_single_writer(asked_ns_ - given_ns_);
    trace_.record(TraceKind::kConsumerBusy, given_ns_, asked_ns_, at.epoch, at.step);
    quick_ = (asked_ns_ - given_ns_) / (untimed_ + 1) < kQuickNs;
  }
  untimed_ = 0;
  if (tuner_ && batch_bytes != 0 && !std::exchange(sized_, true)) {
    queue_.store(tuner_->begin(batch_bytes).queue, std::memory_order_relaxed);
  }
  if (asked_ns_ >= next_depth_ns_) {
    next_depth_ns_ = asked_ns_ + 1'000'000;
    const uint32_t ready = depth();
    depths_.add(asked_ns_, ready);
    least_ready_ = std::min(least_ready_, ready);
  }
  if (tuner_ && asked_ns_ - tuned_ns_ >= Tuner::kPeriodNs) tune(batch_bytes);
}

// Passes the counters since the last call to the tuner, and applies its settings.
void ConsumerPace::tune(uint64_t batch_bytes) {
  const uint64_t delivered = ring_.consumer().delivered.get();
  uint64_t busy = 0;
  for (uint32_t w = 0; w < ring_.workers(); ++w) busy += ring_.place(w).counters.busy_ns.get();
  if (tuned_ns_ != 0) {
    // If one worker does all the work, the others are not idle for lack of tickets.
    const uint64_t times = ring_.sleepers().one_suffices() ? workers_ : 1;
    const Tuner::Settings& to =
        tuner_->next({asked_ns_ - tuned_ns_, held_up_ns_, delivered - tuned_delivered_,
                      (busy - tuned_busy_ns_) * times, least_ready_, batch_bytes});
    queue_.store(to.queue, std::memory_order_relaxed);
    if (to.workers != workers_) ring_.sleepers().set_active(workers_ = to.workers);
  }
  tuned_ns_ = asked_ns_;
  tuned_delivered_ = delivered;
  tuned_busy_ns_ = busy;
  held_up_ns_ = 0;
  least_ready_ = UINT32_MAX;
}

void ConsumerPace::give(const Position& at) {
  if (!asked()) return;
  const bool first = given_ns_ == 0;
  given_ns_ = now_ns();
  ConsumerCounters& counters = ring_.consumer();
  counters.last_ns.set(given_ns_);
  counters.wait_ns.add_single_writer(given_ns_ - asked_ns_);
  if (first) counters.first_wait_ns.set(given_ns_ - asked_ns_);
  if (std::exchange(late_, false)) held_up_ns_ += given_ns_ - asked_ns_;
  trace_.record(TraceKind::kConsumerWait, asked_ns_, given_ns_, at.epoch, at.step);
  asked_ns_ = 0;
}

void ConsumerPace::give_error() {
  given_ns_ = now_ns();
  asked_ns_ = 0;
  late_ = false;
}

uint32_t ConsumerPace::depth() const {
  uint32_t count = 0;
  for (uint64_t seq = ring_.head(), end = ring_.posted(); seq < end; ++seq) {
    count += ring_.ready(seq);
  }
  return count;
}

}  // namespace penstock
