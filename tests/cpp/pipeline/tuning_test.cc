// Loaders that tune themselves, with real workers. Nothing here depends on the machine's speed: the
// tests wait for each state, and compare counts.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/api/loader.h"

namespace penstock {
namespace {

using std::chrono::microseconds;

constexpr uint64_t kPatienceNs = 110'000'000'000;

int64_t first_of(const Example& batch) {
  int64_t number;
  std::memcpy(&number, batch.begin()->second.data(), sizeof(number));
  return number;
}

// An endless run of batches; the test sets the times to make and to use a batch.
struct Pace {
  std::atomic<int64_t> make_us{0}, step_us{0};
  Dataset dataset() {
    auto made = [this](const Example& in, SampleContext&) {
      if (make_us > 0) std::this_thread::sleep_for(microseconds(make_us));
      return in;
    };
    return Dataset::range(0, 1'000).map(made, "made").batch(1).repeat();
  }
  // Takes batches, in order, until the condition holds; false: it never did.
  template <class Until>
  bool run(Loader& feed, Until until) {
    for (const uint64_t end = now_ns() + kPatienceNs; now_ns() < end;) {
      auto batch = feed.next();
      EXPECT_EQ(first_of(*batch), taken++ % 1'000);
      if (step_us > 0) std::this_thread::sleep_for(microseconds(step_us));
      if (until(feed.stats())) return true;
    }
    return false;
  }
  int64_t taken = 0;
};

// The length of the queue depends on other load of the machine: tuner_test simulates it.
TEST(Tuning, a_slow_consumer_ends_with_one_worker) {
  Pace pace;
  pace.step_us = 2'000;
  Loader feed = pace.dataset().build();
  EXPECT_EQ(feed.stats().active_workers, os::usable_cores());
  EXPECT_TRUE(pace.run(feed, [](const LoaderStats& s) { return s.active_workers == 1; }));
}

TEST(Tuning, a_change_of_pace_is_followed_and_slow_work_gets_all_workers) {
  if (os::usable_cores() < 2) GTEST_SKIP() << "one core has nothing to share out";
  Pace pace;
  Loader feed = pace.dataset().build();
  for (int round = 0; round < 2; ++round) {
    pace.step_us = 2'000;
    pace.make_us = 0;
    ASSERT_TRUE(pace.run(feed, [](const LoaderStats& s) { return s.active_workers == 1; }))
        << round;
    pace.step_us = 0;
    pace.make_us = 2'000;
    ASSERT_TRUE(pace.run(feed, [](const LoaderStats& s) {
      return s.active_workers == os::usable_cores();
    })) << round;
  }
}

TEST(Tuning, what_is_given_is_not_tuned) {
  Pace pace;
  pace.step_us = 1'000;
  Loader feed = pace.dataset().prefetch(7).build({.workers = 2});
  for (const uint64_t end = now_ns() + 500'000'000; now_ns() < end;) {
    (void)pace.run(feed, [](const LoaderStats&) { return true; });
    ASSERT_EQ(feed.stats().active_workers, 2u);
    ASSERT_EQ(feed.stats().queue_size, 7u);
  }
}

TEST(Tuning, batches_stay_within_their_bytes_whatever_the_queue_is) {
  constexpr uint64_t kBytes = 1 << 20;
  std::atomic<int64_t> made{0};
  auto large = [&made](const Example&, SampleContext&) {
    ++made;
    return Example{{"x", Tensor::make(DType::kUint8, {kBytes})}};
  };
  Loader feed =
      Dataset::range(0, 1'000).map(large, "large").repeat().build({.max_bytes = 6 * kBytes});
  int64_t taken = 0;
  for (const uint64_t end = now_ns() + 1'500'000'000; now_ns() < end; ++taken) {
    ASSERT_TRUE(feed.next());
    // Bursts, so a longer queue helps.
    if (taken % 16 == 0) std::this_thread::sleep_for(microseconds(20'000));
    // One more may be made while this one is taken.
    ASSERT_LE(made - taken, 6 + 2);
  }
  EXPECT_LE(feed.stats().queue_size, 10u);
}

TEST(Tuning, closing_ends_parked_workers_too) {
  Pace pace;
  pace.step_us = 2'000;
  Loader feed = pace.dataset().build();
  EXPECT_TRUE(pace.run(feed, [](const LoaderStats& s) { return s.active_workers == 1; }));
  feed.close();
}

}  // namespace
}  // namespace penstock
