// The weights that a Hogwild worker with a snapshot reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/train/hogwild.h"
#include "penstock/train/relaxed.h"
#include "tests/cpp/train/optimizers.h"

namespace penstock::train {
namespace {

using testing::same_bits;

// Two workers on one vector, by hand on one thread.
class HogwildSnapshots : public ::testing::TestWithParam<Snapshots> {
 protected:
  static constexpr size_t kLong = 20, kShort = 3;

  void SetUp() override {
    one.begin();
    two.begin();
  }
  HogwildWorker worker(size_t number) {
    return {parameters, Optimizer::sgd(1.0), {}, counters, number, {.snapshots = GetParam()}};
  }
  void add_one(HogwildWorker& worker) {
    std::ranges::fill(gradients.at("w").as_span<float>(), -1.0f);
    worker.apply(gradients);
  }
  static float seen(const HogwildWorker& worker) { return worker.weights().slab().values()[0]; }
  uint64_t stale(size_t number, uint64_t by) const {
    return counters.counts(number).staleness[SharedCounters::bucket(by)];
  }

  const Parameters parameters{Layout{{"w", {kLong}}, {"v", {kShort}}}};
  const Slab gradients = parameters.gradients();
  const SharedCounters counters = SharedCounters::make(2, false);
  HogwildWorker one = worker(0), two = worker(1);
};

class HogwildSnapshotOfStep : public HogwildSnapshots {};
class HogwildSnapshotOfUpdate : public HogwildSnapshots {};

TEST_P(HogwildSnapshots, they_do_not_change_amid_a_step) {
  add_one(two);
  relaxed::store(parameters.slab().values()[0], 7);
  EXPECT_EQ(seen(one), 0);
}

TEST_P(HogwildSnapshots, staleness_is_of_others_updates_alone) {
  one.read();
  add_one(two);
  add_one(one);
  add_one(one);
  EXPECT_EQ(stale(0, 1) + stale(0, 0), 2u);
  one.read();
  add_one(one);
  EXPECT_GE(stale(0, 0), 1u);
  EXPECT_EQ(stale(0, 2) + stale(0, 3), 0u);
}

TEST_P(HogwildSnapshots, weights_outside_a_partial_update_are_read) {
  const std::vector<float> ones(kLong, -1), twos(kShort, -2);
  const GradientPart w{"w", ones}, v{"v", twos};
  one.apply(std::span(&w, 1));
  EXPECT_FALSE(one.up_to_date());
  two.apply(std::span(&v, 1));
  one.read();
  EXPECT_EQ(one.weights().at("v").as_span<float>()[0], 2);
}

TEST_P(HogwildSnapshots, weights_that_a_step_writes_itself_are_read) {
  add_one(one);
  relaxed::store(parameters.slab().values()[0], 7);
  one.count(1);
  EXPECT_FALSE(one.up_to_date());
  one.read();
  EXPECT_EQ(seen(one), 7);
}

TEST_P(HogwildSnapshots, they_are_no_gradients) {
  std::ranges::fill(parameters.slab().values(), 2.0f);
  one.read();
  EXPECT_THROW(one.apply(one.weights().slab()), Error);
  const auto lies_in = [&](const Parameters& weights) {
    return GradientPart{"v", weights.at("w").as_span<float>().first(kShort)};
  };
  const GradientPart common = lies_in(parameters);
  EXPECT_THROW(one.apply(std::span(&common, 1)), Error);
  EXPECT_EQ(parameters.version(), 0u);
}

TEST_P(HogwildSnapshotOfStep, a_step_begins_with_the_weights_as_they_are) {
  one.read();
  relaxed::store(parameters.slab().values()[0], 7);  // a change that is not an update
  one.read();
  EXPECT_EQ(seen(one), 7);
  add_one(one);
  one.read();
  EXPECT_EQ(seen(one), 8);
}

// The product's gradient: each factor is the other's.
TEST_P(HogwildSnapshotOfStep, an_update_may_read_its_gradient_from_the_snapshot) {
  std::ranges::fill(parameters.slab().values(), 2.0f);
  parameters.at("v").as_span<float>()[0] = 3;
  one.read();
  const std::vector<float> zeroes(kLong, 0);
  const std::vector<GradientPart> parts{{"w", zeroes},
                                        {"v", one.weights().at("w").as_span<float>().first(3)}};
  one.apply(parts);
  EXPECT_EQ(parameters.at("v").as_span<float>()[0], 1);
}

TEST_P(HogwildSnapshotOfUpdate, an_update_leaves_them_as_they_are_unless_more_than_one_came_since) {
  one.read();
  add_one(one);
  EXPECT_TRUE(one.up_to_date());
  EXPECT_TRUE(same_bits(one.weights().slab(), parameters.slab()));
  add_one(two);
  EXPECT_TRUE(one.up_to_date());
  one.read();
  EXPECT_EQ(seen(one), 1);  // as if the other worker's update had come during this step
  EXPECT_FALSE(one.up_to_date());
  add_one(one);
  EXPECT_EQ(stale(0, 1), 1u);
  EXPECT_EQ(seen(one), 3);
  add_one(two);
  add_one(two);
  EXPECT_FALSE(one.up_to_date());
  one.read();
  EXPECT_EQ(seen(one), 5);
  add_one(one);
  EXPECT_EQ(stale(0, 0), 2u);
}

TEST_P(HogwildSnapshotOfUpdate, all_blocks_together_are_all_weights) {
  const std::vector<float> ones(kLong, -1), twos(kShort, -2);
  const std::vector<GradientPart> both{{"w", ones}, {"v", twos}};
  one.apply(both);
  EXPECT_TRUE(one.up_to_date());
  EXPECT_TRUE(same_bits(one.weights().slab(), parameters.slab()));
}

TEST_P(HogwildSnapshotOfUpdate, a_gradient_does_not_lie_in_one) {
  const GradientPart part{"v", one.weights().at("w").as_span<float>().first(kShort)};
  EXPECT_THROW(one.apply(std::span(&part, 1)), Error);
}

std::string name_of(const ::testing::TestParamInfo<Snapshots>& of) {
  return of.param == Snapshots::kStep ? "step" : "update";
}

INSTANTIATE_TEST_SUITE_P(Each, HogwildSnapshots,
                         ::testing::Values(Snapshots::kStep, Snapshots::kUpdate), name_of);
INSTANTIATE_TEST_SUITE_P(Each, HogwildSnapshotOfStep, ::testing::Values(Snapshots::kStep), name_of);
INSTANTIATE_TEST_SUITE_P(Each, HogwildSnapshotOfUpdate, ::testing::Values(Snapshots::kUpdate),
                         name_of);

TEST(Hogwild, a_run_begins_with_the_weights_as_they_are) {
  for (const Snapshots snapshots : {Snapshots::kStep, Snapshots::kUpdate}) {
    for (const size_t replicas : {1, 2}) {
      Updater updater(Parameters(Layout{{"w", {20}}}), Optimizer::sgd(1.0));
      Hogwild hogwild(updater, 2, {.snapshots = snapshots, .replicas = replicas});
      const auto w = updater.parameters().at("w").as_span<float>();
      for (const float value : {3.0f, 30.0f, 300.0f}) {
        std::ranges::fill(w, value);
        std::atomic<bool> seen{true};
        hogwild.run([&](HogwildWorker& worker) -> Hogwild::Step {
          seen = seen && worker.weights().slab().values()[0] == value;
          return [&, gradients = worker.parameters().gradients(), left = 1]() mutable {
            if (left-- == 0) return false;
            worker.read();
            seen = seen && worker.weights().slab().values()[0] == value;
            return worker.apply(gradients);
          };
        });
        EXPECT_TRUE(seen);
      }
    }
  }
}

TEST(Hogwild, a_snapshot_sees_the_merge_of_another_group) {
  const Parameters common(Layout{{"w", {20}}});
  const auto replicas = Replica::make(common, 2, 0);
  const SharedCounters counters = SharedCounters::make(2, false);
  HogwildWorker worker(
      replicas[0]->parameters(), Optimizer::sgd(1.0), {}, counters, 0,
      {.snapshots = Snapshots::kUpdate, .replica = replicas[0], .merge_every = 99});
  for (const auto& replica : replicas) replica->begin();
  worker.begin();
  const Slab gradients = common.gradients();
  worker.apply(gradients);
  std::ranges::fill(replicas[1]->parameters().slab().values(), 4.0f);
  replicas[1]->merge();
  replicas[0]->merge();
  worker.read();
  EXPECT_EQ(worker.weights().slab().values()[0], 4);
}

}  // namespace
}  // namespace penstock::train
