#include "penstock/pipeline/scheduler/tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace penstock {
namespace {

using Settings = Tuner::Settings;

// A simulated run: workers need work_ns for a batch, the consumer needs step_ns. Only `useful`
// workers add throughput; further workers are busy, too.
struct MadeUpPace {
  uint64_t work_ns = 1'000'000;
  uint64_t step_ns = 10'000'000;
  uint32_t useful = 1'000;
  uint64_t batch_bytes = 1'000;
  bool uneven = false;  // bursts: a short queue runs empty although workers are idle

  Tuner::Seen period(const Settings& s) const {
    constexpr double kPeriod = Tuner::kPeriodNs;
    const double made = std::min(s.workers, useful) / static_cast<double>(work_ns);
    double rate = std::min(made, 1.0 / static_cast<double>(step_ns));
    if (uneven && s.queue < 32) rate = std::min(rate, made / 2);
    // A slow consumer's period is longer.
    const double length = std::max(kPeriod, Tuner::kBatches / rate);
    Tuner::Seen seen;
    seen.period_ns = static_cast<uint64_t>(std::ceil(length));
    seen.delivered = static_cast<uint64_t>(std::ceil(length * rate));
    seen.waited_ns =
        static_cast<uint64_t>(length * std::max(0.0, 1 - rate * static_cast<double>(step_ns)));
    double busy = length * rate * static_cast<double>(work_ns);
    if (s.workers > useful) busy *= static_cast<double>(s.workers) / useful;
    seen.busy_ns = static_cast<uint64_t>(busy);
    seen.least_ready = seen.waited_ns > seen.period_ns / 50 ? 0 : s.queue;
    seen.batch_bytes = batch_bytes;
    return seen;
  }
  Settings after(Tuner& tuner, int periods) const {
    for (int i = 0; i < periods; ++i) tuner.next(period(tuner.settings()));
    return tuner.settings();
  }
};

constexpr Tuner::Limits kBoth{true, true, 8};

TEST(Tuner, a_slow_consumer_ends_with_one_worker_and_a_short_queue) {
  Tuner tuner(kBoth, {8, 10});
  const Settings end = MadeUpPace{.work_ns = 1'000'000, .step_ns = 20'000'000}.after(tuner, 400);
  EXPECT_EQ(end.workers, 1u);
  EXPECT_LE(end.queue, 3u);
}

TEST(Tuner, slow_work_gets_all_workers_and_keeps_them) {
  Tuner tuner(kBoth, {1, 10});
  MadeUpPace run{.work_ns = 50'000'000, .step_ns = 1'000};
  EXPECT_EQ(run.after(tuner, 40).workers, 8u);
  // Fewer workers are tried from time to time, and restored in the next period.
  uint64_t sum = 0;
  for (int i = 0; i < 520; ++i) sum += run.after(tuner, 1).workers;
  EXPECT_GT(sum, 8u * 520 * 98 / 100);
  EXPECT_GE(tuner.settings().workers, 6u);
}

TEST(Tuner, as_many_workers_as_the_consumers_pace_asks_for_and_no_more) {
  // Exactly 3 workers are needed.
  MadeUpPace run{.work_ns = 28'000'000, .step_ns = 10'000'000};
  for (uint32_t start : {1u, 3u, 8u}) {
    Tuner tuner(kBoth, {start, 10});
    const Settings end = run.after(tuner, 300);
    EXPECT_GE(end.workers, 3u) << start;
    EXPECT_LE(end.workers, 5u) << start;
  }
}

TEST(Tuner, a_change_of_the_consumers_pace_is_followed_both_ways) {
  Tuner tuner(kBoth, {8, 10});
  const MadeUpPace slow{.work_ns = 10'000'000, .step_ns = 100'000'000};
  const MadeUpPace fast{.work_ns = 10'000'000, .step_ns = 100'000};
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(slow.after(tuner, 60).workers, 1u) << round;
    EXPECT_GE(fast.after(tuner, 40).workers, 6u) << round;
  }
}

TEST(Tuner, workers_that_bring_nothing_go_and_are_not_tried_all_the_time) {
  Tuner tuner(kBoth, {8, 10});
  const MadeUpPace run{.work_ns = 10'000'000, .step_ns = 100'000, .useful = 2};
  EXPECT_LE(run.after(tuner, 200).workers, 2u + 1);
  uint32_t more = 0;
  for (int i = 0; i < 200; ++i) more += run.after(tuner, 1).workers > 2;
  EXPECT_LT(more, 20u);
}

TEST(Tuner, a_queue_that_runs_empty_though_workers_are_idle_grows) {
  Tuner tuner(kBoth, {4, 4});
  const Settings end =
      MadeUpPace{.work_ns = 1'000'000, .step_ns = 100'000, .uneven = true}.after(tuner, 10);
  EXPECT_GE(end.queue, 32u);
  EXPECT_LE(end.queue, Tuner::kMaxQueue);
}

TEST(Tuner, a_queue_in_front_of_busy_workers_shrinks_to_what_keeps_them_busy) {
  Tuner tuner(kBoth, {8, 64});
  const MadeUpPace run{.work_ns = 10'000'000, .step_ns = 100'000};
  EXPECT_EQ(run.after(tuner, 100).queue, tuner.settings().workers);
  Tuner uneven(kBoth, {8, 64});
  const MadeUpPace bursts{.work_ns = 1'000'000, .step_ns = 100'000, .uneven = true};
  bursts.after(uneven, 100);
  uint32_t short_for = 0;
  for (int i = 0; i < 500; ++i) short_for += bursts.after(uneven, 1).queue < 32;
  EXPECT_LE(short_for, 500 / Tuner::kRest + 1);  // tried, and reverted in the next period
  EXPECT_LE(uneven.settings().queue, 48u);
}

TEST(Tuner, many_shorter_queues_that_cost_a_little_each_are_given_up) {
  Tuner tuner({false, true, 8}, {8, 64});
  for (int i = 0; i < 400; ++i) {
    const double loss = 0.05 * std::log(64.0 / tuner.settings().queue);
    const auto delivered = static_cast<uint64_t>(10'000 * (1 - loss));
    tuner.next({Tuner::kPeriodNs, Tuner::kPeriodNs / 2, delivered, 8 * Tuner::kPeriodNs, 0, 1'000});
  }
  EXPECT_GE(tuner.settings().queue, 24u);
}

TEST(Tuner, the_queue_stays_within_its_bytes) {
  Tuner::Limits limits = kBoth;
  limits.max_bytes = 12'000;
  Tuner tuner(limits, {4, 10});
  MadeUpPace run{.work_ns = 1'000'000, .step_ns = 100'000, .uneven = true};
  EXPECT_EQ(run.after(tuner, 10).queue, 12u);
  run.batch_bytes = 1 << 30;  // larger than any budget: at least two
  EXPECT_EQ(run.after(tuner, 10).queue, Tuner::kMinQueue);
}

TEST(Tuner, a_queue_of_large_batches_begins_short_and_grows) {
  Tuner tuner(kBoth, {4, 10});
  EXPECT_EQ(tuner.begin(uint64_t{64} << 20).queue, 4u);
  MadeUpPace run{.work_ns = 1'000'000, .step_ns = 100'000, .uneven = true};
  EXPECT_GE(run.after(tuner, 10).queue, 32u);
  EXPECT_EQ(Tuner(kBoth, {4, 10}).begin(uint64_t{1} << 40).queue, Tuner::kMinQueue);
  EXPECT_EQ(Tuner(kBoth, {4, 10}).begin(1 << 20).queue, 10u);
  EXPECT_EQ(Tuner({true, false, 8}, {4, 10}).begin(uint64_t{1} << 40).queue, 10u);  // given
}

TEST(Tuner, what_was_given_stays) {
  for (const MadeUpPace& run :
       {MadeUpPace{.step_ns = 50'000'000}, MadeUpPace{.work_ns = 50'000'000, .step_ns = 1'000},
        MadeUpPace{.step_ns = 100'000, .uneven = true}}) {
    Tuner none({false, false, 8}, {3, 7});
    EXPECT_EQ(run.after(none, 100), (Settings{3, 7}));
    Tuner queue({false, true, 8}, {3, 7});
    EXPECT_EQ(run.after(queue, 100).workers, 3u);
    Tuner workers({true, false, 8}, {3, 7});
    EXPECT_EQ(run.after(workers, 100).queue, 7u);
  }
}

TEST(Tuner, a_period_is_long_enough_to_say_something) {
  Tuner tuner(kBoth, {8, 10});
  // Much idle time, but few batches, or a very short period.
  Tuner::Seen few{.period_ns = Tuner::kPeriodNs, .delivered = 1};
  for (uint64_t i = 0; i + 1 < Tuner::kBatches; ++i) EXPECT_EQ(tuner.next(few).workers, 8u);
  EXPECT_EQ(tuner.next(few).workers, 7u);
  Tuner::Seen quick{.period_ns = Tuner::kPeriodNs / 10, .delivered = 1'000};
  for (int i = 0; i < 9; ++i) EXPECT_EQ(tuner.next(quick).workers, 7u);
  EXPECT_EQ(tuner.next(quick).workers, 6u);
}

TEST(Tuner, no_counters_lead_out_of_the_limits) {
  uint64_t draw = 1;
  auto next = [&draw](uint64_t most) {
    draw = draw * 6364136223846793005u + 1442695040888963407u;
    return (draw >> 33) % most;
  };
  Tuner tuner({true, true, 5, 40, 1 << 20}, {9, 100});
  EXPECT_EQ(tuner.settings(), (Settings{5, 40}));
  for (int i = 0; i < 20'000; ++i) {
    const Settings& s =
        tuner.next({next(300'000'000), next(300'000'000), next(50), next(2'000'000'000),
                    static_cast<uint32_t>(next(64)), next(2) * (1 + next(1 << 21))});
    ASSERT_GE(s.workers, 1u);
    ASSERT_LE(s.workers, 5u);
    ASSERT_GE(s.queue, Tuner::kMinQueue);
    ASSERT_LE(s.queue, 40u);
  }
}

}  // namespace
}  // namespace penstock
