#include "penstock/pipeline/scheduler/tuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace penstock {
namespace {

constexpr double kWaits = 0.02;    // a consumer that waits for more of its time is held up
constexpr double kFlows = 0.005;   // a consumer that waits for less of its time is not held up
constexpr double kIdle = 0.25;     // workers with a larger idle part are not the bottleneck
constexpr double kSpare = 1.25;    // average number of idle workers above which one is parked
constexpr double kRises = 1.03;    // smallest rise of the rate that keeps more workers
constexpr double kIdler = 0.02;    // a shorter queue is refused if the idle part grew by more
constexpr double kChanges = 0.25;  // relative change of the rate after which to repeat trials

}  // namespace

Tuner::Tuner(const Limits& limits, const Settings& start) : limits_(limits), settings_(start) {
  if (limits_.workers) settings_.workers = std::clamp(start.workers, 1u, limits_.max_workers);
  if (limits_.queue) settings_.queue = std::clamp(start.queue, kMinQueue, limits_.max_queue);
}

const Tuner::Settings& Tuner::begin(uint64_t batch_bytes) {
  const uint64_t most = std::min(limits_.max_bytes, kStartBytes);
  if (limits_.queue) settings_.queue = std::min(settings_.queue, max_queue(most, batch_bytes));
  return settings_;
}

const Tuner::Settings& Tuner::next(const Seen& seen) {
  sum_.period_ns += seen.period_ns;
  sum_.waited_ns += seen.waited_ns;
  sum_.delivered += seen.delivered;
  sum_.busy_ns += seen.busy_ns;
  sum_.least_ready = any_ ? std::min(sum_.least_ready, seen.least_ready) : seen.least_ready;
  sum_.batch_bytes = seen.batch_bytes;
  any_ = true;
  if (sum_.period_ns >= kPeriodNs && sum_.delivered >= kBatches) {
    judge(sum_);
    sum_ = {};
    any_ = false;
  }
  return settings_;
}

void Tuner::judge(const Seen& seen) {
  const auto period = static_cast<double>(seen.period_ns);
  const double all = period * settings_.workers;
  // A ticket's time is counted at its end, and may be longer than a period.
  const double idle = 1 - std::min(static_cast<double>(seen.busy_ns) / all, 1.0);
  const double wait = static_cast<double>(seen.waited_ns) / period;
  const double rate = static_cast<double>(seen.delivered) / period;
  if (refused_ > 0 && std::abs(rate - refused_) > kChanges * refused_) refused_ = 0;
  for (uint32_t* left : {&until_more_, &until_fewer_, &until_shorter_, &settling_}) {
    *left -= *left > 0;
  }
  if (trial_ != 0) return conclude(rate, wait > kWaits);
  if (away_ != 0) return conclude_queue(rate, idle);
  const uint32_t ahead = settings_.queue;
  if (limits_.queue) tune_queue(seen, wait, idle, rate);
  // A longer queue may be enough; only one change is tried at a time.
  if (limits_.workers && settings_.queue <= ahead && away_ == 0) tune_workers(rate, wait, idle);
}

void Tuner::tune_workers(double rate, double wait, double idle) {
  uint32_t& workers = settings_.workers;
  const uint32_t step = std::max(workers / 4, 1u);
  const bool refused = refused_ > 0 && until_more_ > 0;
  if (wait > kWaits && idle <= kIdle && workers < limits_.max_workers && !refused) {
    try_out(static_cast<int32_t>(std::min(step, limits_.max_workers - workers)), rate);
  } else if (wait > kWaits && workers > 1 && until_fewer_ == 0) {
    try_out(-static_cast<int32_t>(step), rate);
  } else if (wait < kFlows && idle * workers > kSpare && workers > 1 && settling_ == 0) {
    --workers;
  }
}

void Tuner::try_out(int32_t more, double rate) {
  trial_ = more;
  before_ = rate;
  settings_.workers = static_cast<uint32_t>(static_cast<int32_t>(settings_.workers) + more);
}

void Tuner::conclude(double rate, bool waits) {
  const int32_t trial = std::exchange(trial_, 0);
  const bool useless = trial > 0 ? rate < kRises * before_ : rate * kRises >= before_;
  // More workers are also kept if the consumer no longer waits.
  const bool back = trial > 0 ? useless && waits : !useless;
  // A negative trial wraps modulo 2^32.
  if (back) settings_.workers -= static_cast<uint32_t>(trial);
  if (useless) {
    refused_ = rate;
    until_more_ = kRest;
  }
  if (trial > 0) settling_ = kCalm;
  until_fewer_ = trial < 0 && useless ? 2 : kRest;
}

void Tuner::tune_queue(const Seen& seen, double wait, double idle, double rate) {
  const bool waits = wait > kWaits;
  uint32_t& queue = settings_.queue;
  if (waits && idle > kIdle) {
    queue *= 2;
    until_shorter_ = kRest;
  }
  calm_ = !waits && seen.least_ready > queue / 4 ? calm_ + 1 : 0;
  if (calm_ >= kCalm) {
    calm_ = 0;
    queue -= std::max(queue / 4, 1u);
  }
  queue = std::clamp(queue, kMinQueue, max_queue(limits_.max_bytes, seen.batch_bytes));
  const uint32_t least = std::max(kMinQueue, settings_.workers);
  if (waits && until_shorter_ == 0 && queue > least) {
    away_ = std::min(std::max(queue / 4, 1u), queue - least);
    queue -= away_;
    if (best_with_ != settings_.workers || std::abs(rate - best_) > kChanges * best_) {
      best_ = 0;
      least_idle_ = 1;
      best_with_ = settings_.workers;
    }
    best_ = std::max(best_, rate);
    least_idle_ = std::min(least_idle_, idle);
  }
}

void Tuner::conclude_queue(double rate, double idle) {
  const uint32_t away = std::exchange(away_, 0);
  if (rate * kRises >= best_ && idle <= least_idle_ + kIdler) return;
  settings_.queue += away;
  until_shorter_ = kRest;
}

uint32_t Tuner::max_queue(uint64_t max_bytes, uint64_t batch_bytes) const {
  if (batch_bytes == 0) return limits_.max_queue;
  const uint64_t fit = std::min<uint64_t>(max_bytes / batch_bytes, limits_.max_queue);
  return std::max(static_cast<uint32_t>(fit), kMinQueue);
}

}  // namespace penstock
