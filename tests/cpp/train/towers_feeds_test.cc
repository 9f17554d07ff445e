#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/api/feeds.h"
#include "penstock/train/towers.h"
#include "tests/cpp/train/least_squares.h"
#include "tests/cpp/train/optimizers.h"

namespace penstock::train {
namespace {

using testing::all_of;
using testing::batched;
using testing::by_hand;
using testing::expect_near;
using testing::fresh;
using testing::gradient_of;
using testing::kBatch;
using testing::kPatience;
using testing::list_of;
using testing::same_bits;
using testing::samples;
using testing::step_of;

TEST(TowersFeeds, batches_count_by_their_rows_or_as_they_are_weighed) {
  const Example all = samples();
  std::vector<Example> parts;
  int64_t begin = 0;
  for (const int64_t rows : {1, 90, 40, 19}) {
    Example part;
    for (const auto& [name, tensor] : all) part.set(name, tensor.rows(begin, begin + rows));
    parts.push_back(part);
    begin += rows;
  }
  Updater updater(fresh(), Optimizer::sgd(1.0)), large(fresh(), Optimizer::sgd(1.0));
  Towers(updater, 4).run(Rounds(list_of(parts)), step_of);
  by_hand(large, {all}, 1);
  expect_near(updater.parameters(), large.parameters());

  Updater equal(fresh(), Optimizer::sgd(1.0));
  Towers towers(equal, 4, {.weigh = [](const Example&) { return 0.3; }});
  EXPECT_EQ(towers.run(Rounds(list_of(parts)), step_of).updates, 1u);
  Parameters mean = fresh();
  for (const Example& part : parts) {
    const Slab gradient = mean.gradients();
    gradient_of(fresh(), part, gradient);
    for (size_t i = 0; i < gradient.values().size(); ++i) {
      mean.slab().values()[i] -= gradient.values()[i] / 4;
    }
  }
  expect_near(equal.parameters(), mean);
}

TEST(TowersFeeds, a_part_that_weighs_nothing_needs_no_loss) {
  const Example all = samples();
  Updater updater(fresh(), Optimizer::sgd(0.1));
  size_t asked = 0;  // the second of two
  Towers towers(updater, 2,
                {.weigh = [&](const Example&) { return asked++ % 2 == 0 ? 1.0 : 0.0; }});
  const TowersReport report = towers.run(Rounds(list_of({all, all})), [](Tower& tower) {
    return [&tower](Example&) { return tower.number() == 0 ? 2.0 : std::nan(""); };
  });
  EXPECT_EQ(report.loss, 2.0);
  EXPECT_EQ(report.last_loss, 2.0);
}

TEST(TowersFeeds, the_next_round_is_taken_and_staged_while_one_runs) {
  Updater updater(fresh(), Optimizer::sgd(0.1));
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<size_t> staged;
  const auto stage = [&](size_t tower, Example batch) {
    const std::lock_guard lock(mutex);
    staged.push_back(tower);
    batch.set("staged", Tensor::make(DType::kInt64, {batch.at("y").dim(0)}));
    changed.notify_all();
    return batch;
  };
  Towers towers(updater, 2, {.stage = stage});
  Loader feed = batched().build({.workers = 0});
  const TowersReport report = towers.run(
      feed,
      [&](Tower& tower) -> Towers::Step {
        return [&](Example& batch) {
          EXPECT_NE(batch.find("staged"), nullptr);
          std::unique_lock lock(mutex);
          const size_t wanted = std::min<size_t>(6, 2 * tower.step() + 4);
          EXPECT_TRUE(changed.wait_for(lock, kPatience, [&] { return staged.size() >= wanted; }));
          return std::nullopt;
        };
      },
      {.steps = 3});
  EXPECT_EQ(staged, (std::vector<size_t>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(report.rounds, 3u);
  EXPECT_TRUE(std::isnan(report.loss));
}

TEST(TowersFeeds, an_exception_of_the_feed_comes_after_the_rounds_before_it) {
  Updater updater(fresh(), Optimizer::sgd(0.1));
  Towers towers(updater, 2);
  auto next = list_of(all_of(batched().build({.workers = 0})));
  const auto broken = [next, left = 5]() mutable {
    if (left-- == 0) throw std::runtime_error("no more");
    return next();
  };
  EXPECT_THROW(towers.run(Rounds(broken), step_of), std::runtime_error);
  EXPECT_EQ(updater.step(), 2u);
  ASSERT_TRUE(towers.failed());
  EXPECT_FALSE(towers.failed()->tower);
  EXPECT_EQ(towers.failed()->round, 2u);
}

TEST(TowersFeeds, a_feed_that_is_closed_in_the_middle_ends_the_run) {
  for (const size_t count : {1, 2, 3, 5}) {
    Updater updater(fresh(), Optimizer::sgd(0.01));
    Towers towers(updater, count);
    Loader feed = batched().repeat().build({.workers = 2});
    const auto closes = [&](Tower& tower) -> Towers::Step {
      return [&](Example& batch) {
        if (tower.step() == 4 && tower.number() + 1 == count) feed.close();
        return gradient_of(tower.parameters(), batch, tower.gradients());
      };
    };
    try {
      towers.run(feed, closes);
      ADD_FAILURE() << "it went on";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kClosed);
    }
    EXPECT_GE(updater.step(), 5u);
    EXPECT_LE(updater.step(), 6u);  // the next round may have been taken already
    Loader other = batched().build({.workers = 0});
    EXPECT_EQ(towers.run(other, step_of).batches, 19u);
  }
}

TEST(TowersFeeds, all_ways_to_feed_give_the_same_bits) {
  Updater expected(fresh(), Optimizer::adam(0.1, {}, {}));
  const auto batches = all_of(batched().build({.workers = 0}));
  by_hand(expected, batches, 2);
  by_hand(expected, batches, 2);
  const auto check = [&](const char* way, Rounds feed) {
    Updater updater(fresh(), expected.optimizer());
    const auto report = Towers(updater, 2).run(std::move(feed), step_of, {.epochs = 2});
    EXPECT_EQ(report.batches, 38u) << way;
    EXPECT_TRUE(same_bits(updater.parameters().slab(), expected.parameters().slab())) << way;
  };
  Loader feed = batched().build({.workers = 2});
  check("turns", feed);
  check("turns again", feed);
  check("a list", Rounds(list_of(batches)));
  Feeds feeds(batched(), 2, {.workers = 2});
  check("feeds", feeds);
  std::vector<Example> each[2];
  for (size_t i = 0; i < batches.size(); ++i) each[i % 2].push_back(batches[i]);
  check("lists", Rounds::feeds({list_of(each[0]), list_of(each[1])}));
}

TEST(TowersFeeds, parts_of_one_batch_and_shards_of_a_dataset) {
  const auto run = [](Rounds feed) {
    Updater updater(fresh(), Optimizer::sgd(0.1));
    Towers(updater, 3).run(std::move(feed), step_of);
    return updater.parameters();
  };
  // 24 rows are three parts of 8; the 6 of the last batch are three of 2, and not one of 6.
  Updater expected(fresh(), Optimizer::sgd(0.1));
  for (const Example& batch : all_of(batched(3 * kBatch).build({.workers = 0}))) {
    const int64_t rows = batch.at("y").dim(0) / 3;
    std::vector<Example> parts(3);
    for (int64_t part = 0; part < 3; ++part) {
      for (const auto& [name, tensor] : batch) {
        parts[static_cast<size_t>(part)].set(name, tensor.rows(part * rows, (part + 1) * rows));
      }
    }
    by_hand(expected, parts, 3);
  }
  Loader split = batched(3 * kBatch).split_batch(3).build({.workers = 2});
  EXPECT_TRUE(same_bits(run(Rounds::parts(split)).slab(), expected.parameters().slab()));

  std::vector<Loader> shards;
  std::vector<Rounds::Next> lists;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    shards.push_back(batched().shard(rank, 3).build({.workers = 1}));
    lists.push_back(list_of(all_of(batched().shard(rank, 3).build({.workers = 0}))));
  }
  EXPECT_TRUE(same_bits(run(Rounds::feeds(shards)).slab(), run(Rounds::feeds(lists)).slab()));
}

TEST(TowersFeeds, feeds_that_end_before_others) {
  const auto batches = all_of(batched().build({.workers = 0}));
  Updater updater(fresh(), Optimizer::sgd(0.1)), expected(fresh(), Optimizer::sgd(0.1));
  const auto report =
      Towers(updater, 2)
          .run(
              Rounds::feeds({list_of({batches[0]}), list_of({batches[1], batches[2], batches[3]})}),
              step_of);
  EXPECT_EQ(report.rounds, 3u);
  EXPECT_EQ(report.batches, 4u);
  by_hand(expected, {batches[0], batches[1]}, 2);
  by_hand(expected, {batches[2]}, 1);
  by_hand(expected, {batches[3]}, 1);
  EXPECT_TRUE(same_bits(updater.parameters().slab(), expected.parameters().slab()));
}

TEST(TowersFeeds, ragged_leaves_have_as_many_rows_as_the_others) {
  Updater updater(fresh(), Optimizer::sgd(0.1));
  Example batch = all_of(batched().build({.workers = 0}))[0];
  batch.set("text", Tensor::make(DType::kUint8, {77}));
  batch.set("text/offsets", Tensor::make(DType::kInt64, {kBatch + 1}));
  EXPECT_EQ(Towers(updater, 2).run(Rounds(list_of({batch, batch})), step_of).rounds, 1u);
}

}  // namespace
}  // namespace penstock::train
