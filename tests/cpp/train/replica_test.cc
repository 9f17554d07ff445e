#include "penstock/train/replica.h"

#include <gtest/gtest.h>

#include <atomic>
#include <span>
#include <thread>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/train/hogwild.h"
#include "penstock/train/relaxed.h"
#include "tests/cpp/train/hogwild_steps.h"
#include "tests/cpp/train/optimizers.h"

namespace penstock::train {
namespace {

using testing::fill;
using testing::same_bits;

constexpr size_t kReplicaFloats = 1300;  // more than two of the pieces of a merge

Parameters a_vector() { return Parameters(Layout{{"w", {static_cast<int64_t>(kReplicaFloats)}}}); }

std::span<float> values(const Parameters& parameters) { return parameters.slab().values(); }

TEST(Replica, a_group_alone_gives_its_bits) {
  const Parameters common = a_vector();
  fill(common.slab(), 1);
  const auto replicas = Replica::make(common, 2, 0);
  for (const auto& replica : replicas) replica->begin();
  EXPECT_TRUE(same_bits(replicas[0]->parameters().slab(), common.slab()));
  for (uint32_t round = 2; round < 5; ++round) {
    fill(replicas[0]->parameters().slab(), round);
    replicas[0]->merge();
    EXPECT_TRUE(same_bits(replicas[0]->parameters().slab(), common.slab()));
    replicas[1]->merge();  // it changed nothing
    EXPECT_TRUE(same_bits(replicas[1]->parameters().slab(), common.slab()));
  }
}

TEST(Replica, a_change_by_one_group_counts_in_full_and_no_merge_exceeds_all_groups) {
  const Parameters common = a_vector();
  for (float& x : values(common)) x = 100;
  const auto replicas = Replica::make(common, 4, 0);
  for (const auto& replica : replicas) replica->begin();
  for (size_t group = 0; group < 4; ++group) {
    const Parameters& own = replicas[group]->parameters();
    for (size_t i = group; i < kReplicaFloats; ++i) values(own)[i] += 8;
    for (int n = 0; n < 5; ++n) own.advance();
  }
  for (int round = 0; round < 2; ++round) {
    for (const auto& replica : replicas) replica->merge();
    EXPECT_EQ(common.version(), 20u);
  }
  for (const auto& replica : replicas) {
    EXPECT_TRUE(same_bits(replica->parameters().slab(), common.slab()));
  }
  // All groups made the same change: it counts once.
  for (size_t i = 0; i < kReplicaFloats; ++i) EXPECT_EQ(values(common)[i], 108);
}

TEST(Replica, where_groups_differ_the_common_weight_is_between_them) {
  const Parameters common = a_vector();
  for (float& x : values(common)) x = 100;
  const auto replicas = Replica::make(common, 2, 0);
  const auto change = [&](size_t group, float by) {
    for (float& x : values(replicas[group]->parameters())) x += by;
    replicas[group]->merge();
    return values(common)[7];
  };
  EXPECT_EQ(change(0, 8), 108);  // because only this group changed it
  EXPECT_EQ(change(1, -4), 106);
  EXPECT_EQ(change(0, 0), 106);  // takes the other group's change
  EXPECT_EQ(change(1, 10), 116);
  EXPECT_EQ(change(0, 40), 136) << "half of its way beyond the other's";
  EXPECT_EQ(change(1, 6), 136) << "the other is there already";
}

// A merge that read a float, computed, and then stored it would undo a store in between.
TEST(Replica, a_merge_undoes_no_concurrent_store) {
  const Parameters common = a_vector();
  const auto replica = Replica::make(common, 1, 0)[0];
  replica->begin();
  std::atomic<bool> stop{false};
  std::thread merging([&] {
    while (!stop) replica->merge();
  });
  const auto own = values(replica->parameters());
  uint64_t undone = 0;
  const Deadline deadline(0.3);
  for (float number = 1; !deadline.passed(); number = number < 1e6f ? number + 1 : 1) {
    for (size_t i = 0; i < own.size(); i += 100) relaxed::store(own[i], number);
    for (size_t i = 0; i < own.size(); i += 100) undone += relaxed::load(own[i]) != number;
  }
  stop = true;
  merging.join();
  EXPECT_EQ(undone, 0u);
}

TEST(Replica, a_run_begins_with_the_current_common_weights) {
  const Parameters common = a_vector();
  const auto replicas = Replica::make(common, 2, 0);
  for (float& x : values(replicas[0]->parameters())) x = 7;  // from a run that was not merged
  replicas[0]->parameters().advance();
  for (float& x : values(common)) x = 3;
  replicas[0]->begin();
  replicas[0]->merge();
  EXPECT_EQ(values(common)[5], 3);
  EXPECT_EQ(common.version(), 0u);
}

TEST(MergePace, merges_after_so_many_updates_or_by_the_clock) {
  const Parameters common = a_vector();
  const auto replica = Replica::make(common, 1, 0).front();
  replica->begin();
  MergePace pace(10);
  const auto after = [&](MergePace& which, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) replica->parameters().advance();
    which.after(n, *replica);
  };
  after(pace, 9);
  EXPECT_EQ(common.version(), 0u);
  after(pace, 1);
  EXPECT_EQ(common.version(), 10u);
  after(pace, 5);
  EXPECT_EQ(common.version(), 10u);
  after(pace, 7);
  EXPECT_EQ(common.version(), 22u);
  MergePace by_clock(0);
  after(by_clock, 1);
  EXPECT_EQ(common.version(), 23u);
}

TEST(Replica, workers_of_all_groups_lose_nothing_that_is_theirs_alone) {
  constexpr size_t kWorkers = 4, kSteps = 300;
  for (const uint64_t every : {uint64_t{0}, uint64_t{7}}) {
    Updater updater(Parameters(Layout{{"w", {kWorkers, 5}}}), Optimizer::sgd(1.0));
    Hogwild hogwild(updater, kWorkers, {.replicas = 4, .merge_every = every});
    for (int run = 1; run <= 2; ++run) {
      const auto report = hogwild.run([](HogwildWorker& worker) -> Hogwild::Step {
        return [&worker, left = kSteps]() mutable {
          if (left-- == 0) return false;
          const int64_t row = static_cast<int64_t>(worker.number());
          const float ones[] = {-1, -1, -1, -1, -1};
          const GradientPart part{"w", ones, true, std::span(&row, 1)};
          worker.read();
          return worker.apply(std::span(&part, 1));
        };
      });
      EXPECT_EQ(report.updates, kWorkers * kSteps);
      for (float x : updater.parameters().at("w").as_span<float>()) {
        EXPECT_EQ(x, run * static_cast<int>(kSteps));
      }
      EXPECT_EQ(updater.parameters().version(), run * kWorkers * kSteps);
      EXPECT_EQ(updater.step(), run * kWorkers * kSteps);
      EXPECT_EQ(report.staleness.front(), (std::pair<uint64_t, uint64_t>{0, kWorkers * kSteps}));
    }
  }
}

TEST(Replica, groups_come_to_one_minimum) {
  for (const bool own_state : {false, true}) {
    Updater updater(Parameters(Layout{{"w", {1000}}}), Optimizer::sgd(0.05));
    Hogwild hogwild(updater, 4,
                    {.own_state = own_state, .snapshots = Snapshots::kUpdate, .replicas = 2});
    // Even with rare merges within a run, each run moves the weights at least half of the way.
    constexpr uint64_t kRuns = 12, kSteps = 600;
    for (uint64_t run = 0; run < kRuns; ++run) {
      EXPECT_EQ(hogwild.run(testing::drawn_to_two, {.steps = kSteps}).updates, kSteps);
    }
    for (float x : updater.parameters().at("w").as_span<float>()) EXPECT_NEAR(x, 2, 0.1);
  }
}

TEST(Replica, as_many_groups_as_workers_at_most) {
  Updater updater(a_vector(), Optimizer::sgd(1.0));
  EXPECT_THROW(Hogwild(updater, 2, {.replicas = 3}), Error);
  EXPECT_THROW(Hogwild(updater, 2, {.replicas = 0}), Error);
}

}  // namespace
}  // namespace penstock::train
