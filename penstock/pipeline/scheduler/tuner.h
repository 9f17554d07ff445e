#pragma once

#include <cstdint>

namespace penstock {

// Chooses the number of workers and of batches ahead of the consumer for the next period, from the
// counters of the last one. A pure function of its inputs: no clock, no thread. The scheduler calls
// it in the consumer's thread.
//
// The consumer waited, and the workers were busy:
//   - A quarter more workers, on trial. If the rate does not rise by 3 %, they are removed, and
//     tried again only after the rate changed by a quarter or kRest periods are over.
//   - After kRest such periods: a quarter fewer workers, on trial. If the rate falls by 3 %, they
//     are added again.
//   - A quarter fewer batches ahead, on trial: more batches ahead do not come sooner then, they
//     only use colder memory. If the rate is 3 % below the best one with as many workers, or
//     workers become idle, the batches are added again and kept for kRest periods.
// The consumer waited, and the workers were idle:
//   - Twice as many batches ahead.
// The consumer did not wait:
//   - One worker fewer, if workers were idle for more than 1.25 workers' worth of time.
//   - A quarter fewer batches ahead, if for kCalm periods more than a quarter of them were ready.
class Tuner {
 public:
  struct Settings {
    uint32_t workers = 1;
    uint32_t queue = 10;  // batches made and not yet taken
    friend bool operator==(const Settings&, const Settings&) = default;
  };
  static constexpr uint32_t kMaxQueue = 64;
  static constexpr uint32_t kMinQueue = 2;
  struct Limits {
    // What the user gave as a number is not tuned.
    bool workers = false, queue = false;
    uint32_t max_workers = 1;
    uint32_t max_queue = kMaxQueue;
    uint64_t max_bytes = UINT64_MAX;  // of batches made ahead
  };
  struct Seen {  // since it was asked last
    uint64_t period_ns = 0;
    uint64_t waited_ns = 0;    // by the consumer, for batches that were late; taking one is no wait
    uint64_t delivered = 0;    // batches
    uint64_t busy_ns = 0;      // of all workers together
    uint32_t least_ready = 0;  // batches
    uint64_t batch_bytes = 0;  // 0: not known
  };
  static constexpr uint64_t kPeriodNs = 100'000'000;
  static constexpr uint64_t kBatches = 8;  // that a period has at least: fewer say too little
  static constexpr uint32_t kCalm = 20, kRest = 50, kStart = 5;

  Tuner(const Limits& limits, const Settings& start);
  // What is shown is added up until it is a period; only then do the settings change.
  const Settings& next(const Seen& seen);
  const Settings& settings() const { return settings_; }

 private:
  void judge(const Seen& seen);
  void tune_workers(double rate, double wait, double idle);
  void tune_queue(const Seen& seen, double wait, double idle, double rate);
  void conclude_queue(double rate, double idle);
  void try_out(int32_t more, double rate);
  void conclude(double rate, bool waits);
  uint32_t max_queue(uint64_t batch_bytes) const;

  Limits limits_;
  Settings settings_;
  Seen sum_;
  bool any_ = false;   // something is in sum_
  int32_t trial_ = 0;  // workers that are there, or away, on trial
  uint32_t away_ = 0;  // batches ahead that are away, on trial
  double before_ = 0;  // batches a nanosecond, before workers were tried
  // The best that was seen while shorter queues were tried, with so many workers: what each of them
  // costs adds up.
  double best_ = 0, least_idle_ = 1;
  uint32_t best_with_ = 0;
  double refused_ = 0;               // at which more workers brought nothing; 0: they may be tried
  uint32_t until_more_ = 0;          // periods until they may, whatever the rate is
  uint32_t until_fewer_ = kRest;     // ... until fewer may be tried while the consumer waits
  uint32_t until_shorter_ = kStart;  // ... until a shorter queue may
  uint32_t settling_ = 0;            // ... in which no idle worker is taken away
  uint32_t calm_ = 0;                // ... in which the queue was never short
};

}  // namespace penstock
