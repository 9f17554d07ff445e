#pragma once

#include <cstdint>

namespace penstock {

// Chooses the number of workers and the queue length (batches ahead of the consumer) for the next
// period from the counters of the last one. A pure function of its inputs: no clock, no thread. The
// scheduler calls it in the consumer's thread.
//
// The consumer waited, and the workers were busy:
// - Add a quarter more workers, on trial. If the rate does not rise by 3 %, remove them, and try
//   again only after the rate changed by a quarter or after kRest periods.
// - After kRest such periods: remove a quarter of the workers, on trial. If the rate falls by 3 %,
//   add them again.
// - Shorten the queue by a quarter, on trial: a longer queue is not faster then, and uses colder
//   memory. If the rate is 3 % below the best one with as many workers, or workers become idle,
//   restore the queue and keep it for kRest periods.
//
// The consumer waited, and the workers were idle:
// - Double the queue.
//
// The consumer did not wait:
// - Remove one worker if the idle time exceeded that of 1.25 workers.
// - Shorten the queue by a quarter if more than a quarter of it was ready for kCalm periods.
//
// The queue begins with kStartBytes at most: each batch of a longer one is new memory.
class Tuner {
 public:
  struct Settings {
    uint32_t workers = 1;
    uint32_t queue = 10;  // batches finished and not yet taken
    friend bool operator==(const Settings&, const Settings&) = default;
  };
  static constexpr uint32_t kMaxQueue = 64;
  static constexpr uint32_t kMinQueue = 2;
  static constexpr uint64_t kStartBytes = uint64_t{256} << 20;
  struct Limits {
    // False: the user gave a number, which is not tuned.
    bool workers = false, queue = false;
    uint32_t max_workers = 1;
    uint32_t max_queue = kMaxQueue;
    uint64_t max_bytes = UINT64_MAX;  // of batches made ahead
  };
  struct Seen {  // counters since the last call
    uint64_t period_ns = 0;
    uint64_t waited_ns = 0;  // the consumer's waits for late batches, without the time to take one
    uint64_t delivered = 0;  // batches
    uint64_t busy_ns = 0;    // of all workers together
    uint32_t least_ready = 0;  // batches
    uint64_t batch_bytes = 0;  // 0: unknown
  };
  static constexpr uint64_t kPeriodNs = 100'000'000;
  // Minimum per period; fewer batches are not a sufficient sample.
  static constexpr uint64_t kBatches = 8;
  static constexpr uint32_t kCalm = 20, kRest = 50, kStart = 5;

  Tuner(const Limits& limits, const Settings& start);
  // The size of a batch is known. To be called once, before next().
  const Settings& begin(uint64_t batch_bytes);
  // Adds `seen` up until there is a full period; only then the settings change.
  const Settings& next(const Seen& seen);
  const Settings& settings() const { return settings_; }

 private:
  void judge(const Seen& seen);
  void tune_workers(double rate, double wait, double idle);
  void tune_queue(const Seen& seen, double wait, double idle, double rate);
  void conclude_queue(double rate, double idle);
  void try_out(int32_t more, double rate);
  void conclude(double rate, bool waits);
  uint32_t max_queue(uint64_t max_bytes, uint64_t batch_bytes) const;

  Limits limits_;
  Settings settings_;
  Seen sum_;
  bool any_ = false;   // sum_ is not empty
  int32_t trial_ = 0;  // workers added (or removed, if negative) on trial
  uint32_t away_ = 0;  // queue length removed on trial
  double before_ = 0;  // batches per nanosecond before the trial of workers
  // The best values seen while shorter queues were tried with best_with_ workers. Small losses of
  // several trials add up, so each trial is compared with the best.
  double best_ = 0, least_idle_ = 1;
  uint32_t best_with_ = 0;
  double refused_ = 0;               // the rate at which more workers did not help; 0: none
  uint32_t until_more_ = 0;          // periods until more workers may be tried again at that rate
  uint32_t until_fewer_ = kRest;     // ... until fewer may be tried while the consumer waits
  uint32_t until_shorter_ = kStart;  // ... until a shorter queue may be tried
  uint32_t settling_ = 0;            // ... in which no idle worker is removed
  uint32_t calm_ = 0;                // ... in a row in which the queue was never short
};

}  // namespace penstock
