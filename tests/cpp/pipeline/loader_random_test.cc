// Random plans and random operations, with a dataset that fails and stalls at random: after any
// operations, each batch of a Loader is the one that its plan determines.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <thread>

#include "datasets.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/loader.h"
#include "penstock/pipeline/scheduler/order.h"

namespace penstock {
namespace {

struct Refused {};

class Walk {
 public:
  explicit Walk(uint32_t seed) : random_(seed) {
    options_.batch_size = 1 + below(12);
    options_.shuffle = below(2) == 0;
    options_.seed = below(100);
    options_.drop_last = below(3) == 0;
    options_.workers = static_cast<uint32_t>(below(5));
    options_.max_queue_size = static_cast<uint32_t>(1 + below(6));
    options_.ordered = below(4) != 0;
    options_.shard.world = static_cast<uint32_t>(1 + below(3));
    options_.shard.rank = static_cast<uint32_t>(below(options_.shard.world));
    options_.on_error = below(2) == 0 ? OnError::kSkip : OnError::kRaise;
    if (below(3) == 0) options_.timeout = std::chrono::seconds(20);
    length_ = 1 + below(120);
    if (options_.on_error == OnError::kSkip) {
      for (int i = 0; i < 5; ++i) bad_.insert(below(length_));
    }
    order_ = std::make_unique<Order>(Order::Options{length_, options_.batch_size, options_.shuffle,
                                                    options_.seed, options_.drop_last,
                                                    options_.shard.rank, options_.shard.world});
    scheduler_ = std::make_unique<Loader>(dataset(), options_);
  }

  void run() {
    std::vector<LoaderState> states{scheduler_->state()};
    for (int move = 0; move < 25; ++move) {
      switch (below(6)) {
        case 0:
          walk(scheduler_->epoch(), below(8));
          break;
        case 1:
          if (steps(0) > 0 && bad_.empty())
            walk(scheduler_->steps(below(2 * steps(0) + 2)), UINT64_MAX);
          break;
        case 2:
          if (auto batch = scheduler_->next()) check(*batch);
          break;
        case 3:
          states.push_back(scheduler_->state());
          break;
        case 4:
          scheduler_->restore(states[below(states.size())]);
          seen_.clear();
          break;
        case 5:
          if (below(4) != 0) break;
          // Elsewhere, with other workers, from the last place.
          LoaderState state = scheduler_->state();
          options_.workers = static_cast<uint32_t>(below(4));
          scheduler_ = std::make_unique<Loader>(dataset(), options_);
          scheduler_->restore(state);
          EXPECT_EQ(scheduler_->state(), state);
          break;
      }
    }
  }

 private:
  uint64_t below(uint64_t n) { return random_() % n; }
  uint64_t steps(uint64_t base) { return order_->steps(base); }

  testing::Made dataset() {
    return testing::Made(length_, [bad = bad_](uint64_t index, SampleContext& context) {
      if (bad.contains(index)) throw Refused();
      for (uint64_t n = context.rng().below(4) == 0 ? context.rng().below(20) : 0; n > 0; --n) {
        std::this_thread::yield();
      }
      RandomStream rng = context.rng_of(1);
      return Example{{"epoch", testing::scalar(int64_t(context.epoch()))},
                     {"index", testing::scalar(int64_t(index))},
                     {"draw", testing::scalar(int64_t(rng.next_u32()))}};
    });
  }

  void walk(Loader::Batches range, uint64_t most) {
    LoaderState before = scheduler_->state();
    for (auto& batch : range) {
      check(batch);
      LoaderState now = scheduler_->state();
      EXPECT_GE(std::pair(now.epoch, now.batches + now.ahead.size()),
                std::pair(before.epoch, before.batches));
      before = now;
      if (most-- == 0) break;
    }
  }

  // Between two restores no batch comes twice. All rows belong to one batch of their epoch, in its
  // order, except skipped ones.
  void check(const Example& batch) {
    auto indices = testing::numbers(batch, "index");
    auto epochs = testing::numbers(batch, "epoch");
    auto draws = testing::numbers(batch, "draw");
    ASSERT_FALSE(indices.empty());
    auto epoch = uint64_t(epochs[0]);
    for (size_t row = 0; row < indices.size(); ++row) {
      EXPECT_EQ(uint64_t(epochs[row]), epoch);
      RandomStream rng({options_.seed, epoch, uint64_t(indices[row]), 1});
      EXPECT_EQ(draws[row], int64_t(rng.next_u32()));
    }
    bool found = false;
    for (uint64_t step = 0; step < steps(0) && !found; ++step) {
      std::vector<uint64_t> plan(order_->samples_in(0, step));
      order_->indices(epoch, 0, step, 0, plan);
      std::erase_if(plan, [&](uint64_t index) { return bad_.contains(index); });
      found = std::equal(plan.begin(), plan.end(), indices.begin(), indices.end());
      if (found) {
        EXPECT_TRUE(seen_.insert({epoch, step}).second) << epoch << " " << step;
      }
    }
    EXPECT_TRUE(found) << "no batch of epoch " << epoch;
  }

  std::mt19937_64 random_;
  LoaderOptions options_;
  uint64_t length_;
  std::set<uint64_t> bad_;
  std::set<std::pair<uint64_t, uint64_t>> seen_;  // (epoch, step)
  std::unique_ptr<Order> order_;
  std::unique_ptr<Loader> scheduler_;
};

TEST(LoaderRandom, every_batch_is_one_of_the_plans_wherever_one_walks) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    Walk(seed).run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace penstock
