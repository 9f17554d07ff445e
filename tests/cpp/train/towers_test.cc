#include "penstock/train/towers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "tests/cpp/train/least_squares.h"
#include "tests/cpp/train/optimizers.h"

namespace penstock::train {
namespace {

using testing::all_of;
using testing::batched;
using testing::by_hand;
using testing::expect_near;
using testing::fill;
using testing::fresh;
using testing::gradient_of;
using testing::kBatch;
using testing::kPatience;
using testing::kSamples;
using testing::list_of;
using testing::same_bits;
using testing::step_of;
using testing::text_of;

TEST(Towers, a_round_is_one_large_batch) {
  for (const size_t count : {1, 2, 3, 5}) {
    Updater updater(fresh(), Optimizer::sgd(0.1)), large(fresh(), Optimizer::sgd(0.1));
    Loader feed = batched().build({.workers = 0});
    Towers towers(updater, count);
    const TowersReport report = towers.run(feed, step_of, {.epochs = 2});
    const Slab gradients = large.parameters().gradients();
    double sum = 0, last = 0;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const Example& batch :
           all_of(batched(kBatch * static_cast<int64_t>(count)).build({.workers = 0}))) {
        gradients.zero();
        last = gradient_of(large.parameters(), batch, gradients);
        sum += last * static_cast<double>(batch.at("y").dim(0));
        large.apply(gradients);
      }
    }
    expect_near(updater.parameters(), large.parameters());
    EXPECT_EQ(report.rounds, 2 * ((19 + count - 1) / count));
    EXPECT_EQ(report.updates, report.rounds);
    EXPECT_EQ(report.batches, 38u);
    EXPECT_EQ(updater.parameters().version(), report.rounds);
    EXPECT_NEAR(report.last_loss, last, 1e-5);
    EXPECT_NEAR(report.loss, sum / (2 * kSamples), 1e-5);
    EXPECT_EQ(report.copied_bytes, 0u);
  }
}

TEST(Towers, the_order_in_which_they_end_changes_no_bit) {
  const Optimizer::Common common{.weight_decay = 0.01, .clip_norm = 1.0};
  const auto batches = all_of(batched().build({.workers = 0}));
  for (const size_t count : {1, 2, 3, 5}) {
    for (const Optimizer& optimizer :
         {Optimizer::nesterov(0.1, 0.9, common), Optimizer::adam(0.01, {}, common)}) {
      Updater expected(fresh(), optimizer);
      by_hand(expected, batches, count);
      for (size_t seed = 0; seed < 3; ++seed) {
        Updater updater(fresh(), optimizer);
        Loader feed = batched().build({.workers = 2});
        std::mutex mutex;
        std::condition_variable changed;
        size_t ended = 0;  // steps, of all rounds
        const auto in_turn = [&](Tower& tower) -> Towers::Step {
          return [&](Example& batch) {
            const size_t before = tower.step() * count;
            std::vector<size_t> order(std::min(count, batches.size() - before));
            std::iota(order.begin(), order.end(), size_t{0});
            std::shuffle(order.begin(), order.end(), std::mt19937(seed * 100 + before));
            const auto mine = std::find(order.begin(), order.end(), tower.number());
            const size_t turn = before + static_cast<size_t>(mine - order.begin());
            std::unique_lock lock(mutex);
            EXPECT_TRUE(changed.wait_for(lock, kPatience, [&] { return ended == turn; }));
            const double loss = gradient_of(tower.parameters(), batch, tower.gradients());
            ++ended;
            changed.notify_all();
            return loss;
          };
        };
        Towers(updater, count).run(feed, in_turn);
        EXPECT_EQ(ended, batches.size());
        ASSERT_TRUE(same_bits(updater.parameters().slab(), expected.parameters().slab()))
            << optimizer.name() << ", " << count << " towers";
      }
    }
  }
}

TEST(Towers, run_after_run_is_as_one_run) {
  for (const size_t count : {1, 2, 3, 5}) {
    Updater once(fresh(), Optimizer::adam(0.05, {}, {})), often(fresh(), once.optimizer());
    Loader feed = batched().build({.workers = 0}), other = batched().build({.workers = 0});
    Towers(once, count).run(feed, step_of, {.epochs = 4});
    Towers towers(often, count);
    const uint64_t rounds = (19 + count - 1) / count;
    for (uint64_t run = 1; run <= 4; ++run) {
      EXPECT_EQ(towers.run(other, step_of).rounds, rounds);
      EXPECT_EQ(towers.towers()[0].step(), run * rounds);
    }
    EXPECT_TRUE(same_bits(once.parameters().slab(), often.parameters().slab()));
    EXPECT_EQ(often.step(), 4 * rounds);
  }
}

TEST(Towers, all_see_the_same_weights_in_a_round_and_new_ones_in_the_next) {
  Updater updater(fresh(), Optimizer::sgd(0.1));
  std::mutex mutex;
  std::condition_variable changed;
  size_t inside = 0;  // steps that have begun, ever
  Loader feed = batched().repeat().build({.workers = 0});
  Towers(updater, 3)
      .run(feed,
           [&](Tower& tower) -> Towers::Step {
             return [&](Example& batch) {
               const uint64_t version = tower.parameters().version();
               EXPECT_EQ(version, tower.step());
               {
                 std::unique_lock lock(mutex);
                 ++inside;
                 changed.notify_all();
                 EXPECT_TRUE(
                     changed.wait_for(lock, kPatience, [&] { return inside >= 3 * version + 3; }));
                 EXPECT_EQ(inside, 3 * version + 3) << "nobody is in the next round";
               }
               EXPECT_EQ(tower.parameters().version(), version);
               return gradient_of(tower.parameters(), batch, tower.gradients());
             };
           },
           {.steps = 10});
  EXPECT_EQ(inside, 30u);
}

TEST(Towers, a_tower_that_throws_ends_all_and_nothing_of_its_round_is_applied) {
  const auto batches = all_of(batched().build({.workers = 0}));
  for (const size_t failing : {0, 2}) {
    Updater updater(fresh(), Optimizer::momentum(0.05, 0.9, {}));
    Updater expected(fresh(), updater.optimizer());
    Towers towers(updater, 3);
    Loader feed = batched().build({.workers = 2});
    const auto fails = [failing](Tower& tower) -> Towers::Step {
      return [&tower, failing](Example& batch) {
        gradient_of(tower.parameters(), batch, tower.gradients());
        if (tower.step() == 2 && tower.number() >= failing) {
          throw std::runtime_error("of tower " + std::to_string(tower.number()));
        }
        return std::nullopt;
      };
    };
    try {
      towers.run(feed, fails);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "of tower " + std::to_string(failing)) << "the first that threw";
    }
    ASSERT_TRUE(towers.failed());
    EXPECT_EQ(towers.failed()->tower, failing);
    EXPECT_EQ(towers.failed()->round, 2u);
    const std::vector<Example> two(batches.begin(), batches.begin() + 6),
        third(batches.begin() + 6, batches.begin() + 9);
    by_hand(expected, two, 3);
    EXPECT_TRUE(same_bits(updater.parameters().slab(), expected.parameters().slab()));
    // Gradients left by the failed round are not part of the next.
    towers.run(Rounds(list_of(third)), step_of);
    by_hand(expected, third, 3);
    EXPECT_TRUE(same_bits(updater.parameters().slab(), expected.parameters().slab()));
    EXPECT_FALSE(towers.failed());
  }
}

TEST(Towers, a_tower_that_cannot_begin_ends_all) {
  Updater updater(fresh(), Optimizer::sgd(0.1));
  Towers towers(updater, 3);
  Loader feed = batched().build({.workers = 0});
  const auto make = [](Tower& tower) -> Towers::Step {
    if (tower.number() == 1) throw 3;
    return [](Example&) -> std::optional<double> { throw std::logic_error("nobody may begin"); };
  };
  EXPECT_THROW(towers.run(feed, make), int);
  EXPECT_EQ(towers.failed()->tower, 1u);
  EXPECT_EQ(updater.step(), 0u);
}

TEST(Towers, they_end_after_rounds_at_a_time_or_when_asked) {
  Updater updater(fresh(), Optimizer::sgd(0.01));
  Towers towers(updater, 2);
  const Example batch = all_of(batched().build({.workers = 0}))[0];
  size_t taken = 0;
  const auto endless = [&]() -> std::optional<Example> { return ++taken, batch; };
  EXPECT_EQ(towers.run(Rounds(endless), step_of, {.steps = 5}).rounds, 5u);
  EXPECT_EQ(taken, 10u) << "exactly those";
  EXPECT_EQ(towers.run(Rounds(endless), step_of, {.steps = 0}).rounds, 0u);
  EXPECT_EQ(taken, 10u);
  EXPECT_GE(towers.run(Rounds(endless), step_of, {.duration_ns = 2'000'000}).seconds, 0.002);
  const auto enough = [](const TowersReport& report) { return report.rounds == 7; };
  EXPECT_EQ(towers.run(Rounds(endless), step_of, {.enough = enough}).rounds, 7u);
  const auto throws = [](const TowersReport&) -> bool { throw std::runtime_error("mine"); };
  EXPECT_THROW(towers.run(Rounds(endless), step_of, {.enough = throws}), std::runtime_error);
  const auto nothing = []() -> std::optional<Example> { return std::nullopt; };
  EXPECT_EQ(towers.run(Rounds(nothing), step_of, {.epochs = UINT64_MAX}).rounds, 0u);
}

TEST(Towers, ranges_added_up_by_several_threads_have_the_same_bits) {
  constexpr size_t kWeights = 600'001, kTowers = 5;
  const Layout layout{{"w", {kWeights}}};
  std::vector<Slab> given;
  for (uint32_t t = 0; t < kTowers; ++t) {
    given.push_back(Slab::make(layout));
    fill(given.back(), t);
  }
  Updater updater(Parameters(layout), Optimizer::sgd(1.0));
  Updater expected(Parameters(layout), Optimizer::sgd(1.0));
  const Example one{{"x", Tensor::make(DType::kFloat32, {1})}};
  Towers towers(updater, kTowers);
  towers.run(Rounds(list_of(std::vector<Example>(kTowers, one))),
             [&](Tower& tower) -> Towers::Step {
               return [&](Example&) {
                 tower.gradients().copy_from(given[tower.number()]);
                 return std::nullopt;
               };
             });
  for (const Tower& tower : towers.towers()) {
    for (const float value : tower.gradients().values()) ASSERT_EQ(value, 0);
  }
  add_towers(given, std::vector<float>(kTowers, 1), 0, given[0].layout().floats());
  expected.apply(given[0], 1.0 / kTowers);
  EXPECT_TRUE(same_bits(updater.parameters().slab(), expected.parameters().slab()));
}

TEST(Towers, rows_of_all_towers_are_added_up) {
  const Layout layout{{"table", {10, 2}}, {"other", {3}}};
  Updater updater(Parameters(layout), Optimizer::sgd(1.0));
  const auto touch = [](Tower& tower) -> Towers::Step {
    return [&tower](Example& batch) {
      const auto rows = batch.at("rows").as_span<int64_t>();
      tower.add_rows("table", rows, std::vector<float>(2 * rows.size(), 1));
      return std::nullopt;
    };
  };
  const auto batch_of = [](std::vector<int64_t> rows) {
    Tensor tensor = Tensor::make(DType::kInt64, {static_cast<int64_t>(rows.size())});
    std::copy(rows.begin(), rows.end(), tensor.as_span<int64_t>().begin());
    return Example{{"rows", tensor}};
  };
  Towers towers(updater, 2);
  for (int run = 1; run <= 2; ++run) {
    towers.run(Rounds(list_of({batch_of({2, 1}), batch_of({2, 2})})), touch);
    std::vector<float> expected(20);
    for (const size_t i : {2, 3}) expected[i] = -0.5f * static_cast<float>(run);
    for (const size_t i : {4, 5}) expected[i] = -1.5f * static_cast<float>(run);
    const auto table = updater.parameters().at("table").as_span<float>();
    EXPECT_EQ(std::vector<float>(table.begin(), table.end()), expected);
  }
  EXPECT_EQ(updater.step(), 2u) << "a round is one update";
  EXPECT_NE(
      text_of([&] { towers.run(Rounds(list_of({batch_of({10})})), touch); }).find("no row 10"),
      std::string::npos);
  const auto mixed = [&](Tower& tower) -> Towers::Step {
    if (tower.number() == 0) return touch(tower);
    return [](Example&) { return std::nullopt; };
  };
  EXPECT_NE(text_of([&] {
              towers.run(Rounds(list_of({batch_of({1}), batch_of({1})})), mixed);
            }).find("rows and whole gradients"),
            std::string::npos);
  EXPECT_EQ(updater.step(), 2u);
}

TEST(Towers, rows_of_several_blocks_are_one_update) {
  const Layout layout{{"a", {3, 2}}, {"b", {2}}};
  Updater of_rows(Parameters(layout), Optimizer::adam(0.1, {}, {.clip_norm = 0.5}));
  Updater whole(Parameters(layout), of_rows.optimizer());
  const Example one{{"x", Tensor::make(DType::kFloat32, {1})}};
  for (Updater* updater : {&of_rows, &whole}) {
    Towers towers(*updater, 2);
    towers.run(Rounds(list_of(std::vector<Example>(6, one))), [&](Tower& tower) -> Towers::Step {
      return [&](Example&) {
        const auto n = static_cast<float>(1 + tower.number() + tower.step());
        const std::vector<float> a{n, 1, 0, 2, n, n}, b{2, n};
        if (updater == &of_rows) {
          tower.add_rows("a", std::vector<int64_t>{0, 1, 2}, a);
          tower.add_rows("b", std::vector<int64_t>{0, 1}, b);
        } else {
          std::copy(a.begin(), a.end(), tower.gradients().at("a").as_span<float>().begin());
          std::copy(b.begin(), b.end(), tower.gradients().at("b").as_span<float>().begin());
        }
        return std::nullopt;
      };
    });
    EXPECT_EQ(updater->step(), 3u);
  }
  expect_near(of_rows.parameters(), whole.parameters());
}

TEST(ThreadGroup, a_thread_that_cannot_start_ends_the_others) {
  size_t ended = 0;
  const auto start = [&](size_t number, std::function<void()> body) -> std::function<void()> {
    if (number == 2) throw std::runtime_error("no more threads");
    const auto thread = std::make_shared<std::thread>(std::move(body));
    return [thread, &ended] {
      thread->join();
      ++ended;
    };
  };
  EXPECT_THROW(ThreadGroup(3, {.start = start}), std::runtime_error);
  EXPECT_EQ(ended, 2u);
}

TEST(Towers, a_non_finite_gradient_is_raised_or_skipped) {
  for (const auto policy : {NonFinite::kRaise, NonFinite::kSkip}) {
    Updater updater(fresh(), Optimizer::sgd(0.01), {.non_finite = policy});
    Towers towers(updater, 2);
    Loader feed = batched().build({.workers = 0});
    const auto poisoned = [](Tower& tower) -> Towers::Step {
      return [&tower](Example& batch) {
        const double loss = gradient_of(tower.parameters(), batch, tower.gradients());
        if (tower.number() == 1 && tower.step() == 3) {
          tower.gradients().at("w").as_span<float>()[2] = std::numeric_limits<float>::infinity();
        }
        return loss;
      };
    };
    if (policy == NonFinite::kSkip) {
      const TowersReport report = towers.run(feed, poisoned);
      EXPECT_EQ(report.rounds, 10u);
      EXPECT_EQ(report.updates, 9u);
      continue;
    }
    EXPECT_NE(text_of([&] { towers.run(feed, poisoned); }).find("block 'w' is inf at (2,)"),
              std::string::npos);
    EXPECT_EQ(updater.step(), 3u);
    ASSERT_TRUE(towers.failed());
    EXPECT_FALSE(towers.failed()->tower);
    EXPECT_EQ(towers.failed()->round, 3u);
  }
}

// Rounds of numbers; the update is the work's own, as for weights on a device.
class Numbers : public Towers::Work {
 public:
  explicit Numbers(int rounds) : rounds_(rounds) {}

  void make(Tower&) override {}
  std::optional<Weights> take() override {
    if (taken_ == rounds_) return std::nullopt;
    ++taken_;
    return Weights{1.0, taken_ == rounds_ ? std::nullopt : std::optional(3.0)};
  }
  void advance() override { ++round_; }
  std::optional<double> compute(Tower& tower) override {
    gradients_[tower.number()] = static_cast<double>(round_ * (tower.number() + 1));
    return static_cast<double>(tower.number());
  }
  bool apply(std::span<const double> weights) override {
    weights_.assign(weights.begin(), weights.end());
    if (round_ == 2) return false;
    sum_ += weights[0] * gradients_[0] + weights[1] * gradients_[1];
    return true;
  }

  double sum_ = 0;
  std::vector<double> weights_;

 private:
  const int rounds_;
  int taken_ = 0;
  size_t round_ = 0;
  double gradients_[2] = {};
};

TEST(Towers, work_may_apply_the_updates_itself) {
  Towers towers(2);
  Numbers work(4);
  const TowersReport report = towers.run(work, {}, {});
  EXPECT_EQ(work.sum_, (1 + 3 * 2) + (3 + 3 * 6) + 4);
  EXPECT_EQ(work.weights_, (std::vector<double>{1, 0}));
  EXPECT_EQ(report.rounds, 4u);
  EXPECT_EQ(report.updates, 3u);
  EXPECT_EQ(report.batches, 7u);
  EXPECT_EQ(report.last_loss, 0.0);
  EXPECT_DOUBLE_EQ(report.loss, 9.0 / 13);
}

TEST(Towers, without_an_updater_the_work_must_apply) {
  Loader feed = batched().build({.workers = 0});
  Towers towers(2);
  const Towers::MakeStep none = [](Tower&) {
    return [](Example&) -> std::optional<double> { return 0.0; };
  };
  const std::string text = text_of([&] { towers.run(feed, none); });
  EXPECT_NE(text.find("no updater"), std::string::npos) << text;
  EXPECT_THROW(Towers(0), Error);
}

TEST(Towers, invalid_arguments_are_refused) {
  Updater updater(fresh(), Optimizer::sgd(0.1));
  EXPECT_THROW(Towers(updater, 0), Error);
  const auto batch = all_of(batched().build({.workers = 0}))[0];
  const auto said = [&](Rounds feed, Towers::Options options = {}) {
    return text_of([&] { Towers(updater, 3, options).run(std::move(feed), step_of); });
  };
  const auto has = [](const std::string& text, const char* what) {
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  has(said(Rounds::feeds({list_of({batch}), list_of({batch})})), "2 feeds for 3 towers");
  has(said(Rounds(list_of({batch})), {.weigh = [](const Example&) { return -1.0; }}), "-1");
  has(said(Rounds(list_of({batch})), {.weigh = [](const Example&) { return 0.0; }}), "weight 0");
  has(said(Rounds(list_of({Example()}))), "a batch is empty");
  has(said(Rounds(list_of({{{"x", Tensor::make(DType::kFloat32, {})}}}))), "has no rows");
  Example uneven = batch;
  uneven.set("z", Tensor::make(DType::kFloat32, {3}));
  has(said(Rounds(list_of({uneven}))), "leaves of 8 and 3 rows");
  Loader whole = batched().build({.workers = 0});
  has(said(Rounds::parts(whole)), "'x'");
  Loader two = batched().split_batch(2).build({.workers = 0});
  has(said(Rounds::parts(two)), "no part 2; end the Dataset with split_batch(3)");
  Loader four = batched().split_batch(4).build({.workers = 0});
  has(said(Rounds::parts(four)), "'3/x'");
  EXPECT_EQ(updater.step(), 0u);
}

}  // namespace
}  // namespace penstock::train
