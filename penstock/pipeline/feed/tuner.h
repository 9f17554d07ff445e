#pragma once

#include <cstdint>

namespace penstock {

// How many workers a consumer's pace asks for, and how many batches ahead of it: from what was
// counted over a period to the settings of the next. A pure function of what it is shown: no clock,
// no thread. The feed shows it its counters, in the consumer's own thread.
//
//   seen over a period                             next
//   the consumer waited, the workers were busy     a quarter more workers, on trial: if the rate
//   did
//                                                  not rise by 3 %, they go again, and are not
//                                                  tried until it changes by a quarter, or kRest
//                                                  periods
//   ... and so it is for kRest periods             a quarter fewer, on trial: if the rate fell by
//                                                  3 %, they come back
//   the consumer waited, the workers were idle     twice as many batches ahead
//   it waited, and they were busy: what is ahead   a quarter fewer batches ahead, on trial: if the
//   is not made sooner, only in colder memory      rate is 3 % below the best that was seen with as
//                                                  many workers, or workers became idle, they come
//                                                  back, and stay for kRest periods
//   it did not wait, and more than 1.25 workers'   a worker less
//   worth of time was idle
//   for kCalm periods it did not wait and always   a quarter fewer batches ahead
//   more than a quarter of them were ready
class Tuner {
 public:
  struct Settings {
    uint32_t workers = 1;
    uint32_t queue = 10;  // batches made and not yet taken
    friend bool operator==(const Settings&, const Settings&) = default;
  };
  static constexpr uint32_t kMostQueue = 64;
  static constexpr uint32_t kLeastQueue = 2;
  struct Limits {
    // What the user gave as a number is not tuned.
    bool workers = false, queue = false;
    uint32_t most_workers = 1;
    uint32_t most_queue = kMostQueue;
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
  uint32_t most_queue(uint64_t batch_bytes) const;

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
