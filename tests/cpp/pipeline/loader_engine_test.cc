#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

#include "numbers.h"
#include "ops.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock {
namespace {

using test::inferred_from_elements;
using test::number_op;
using test::Numbers;
using test::numbers_of;
using test::pass_of;

Numbers run(int64_t begin, int64_t end) {
  Numbers all(static_cast<size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

class EngineWorkers : public ::testing::TestWithParam<uint32_t> {
 protected:
  LoaderOptions options() const { return {.workers = GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(, EngineWorkers, ::testing::Values(0, 1, 3));

TEST_P(EngineWorkers, batches_come_in_order_and_the_last_is_short) {
  Loader feed = Dataset::range(0, 10).batch(4).build(options());
  std::vector<Numbers> expected{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}};
  EXPECT_EQ(pass_of(feed), expected);
  EXPECT_EQ(pass_of(feed), expected) << "again";
  EXPECT_EQ(feed.size(), 3u);
  Loader full = Dataset::range(0, 10).batch(4, {.drop_last = true}).build(options());
  expected.pop_back();
  EXPECT_EQ(pass_of(full), expected);
}

TEST_P(EngineWorkers, elements_come_one_by_one) {
  Loader feed = Dataset::range(0, 1000, 7).build(options());
  Numbers seen;
  for (auto& element : feed.epoch()) {
    EXPECT_EQ(element.at("").ndim(), 0u);
    seen.push_back(numbers_of(element)[0]);
  }
  ASSERT_EQ(seen.size(), 143u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<int64_t>(7 * i));
}

TEST_P(EngineWorkers, an_outermost_repeat_is_one_pass) {
  Loader feed = Dataset::range(0, 4).batch(2).repeat(3).build(options());
  std::vector<Numbers> once{{0, 1}, {2, 3}};
  std::vector<Numbers> expected;
  for (int i = 0; i < 3; ++i) expected.insert(expected.end(), once.begin(), once.end());
  EXPECT_EQ(pass_of(feed), expected);
  EXPECT_EQ(feed.state().epoch, 3u) << "the feed's epochs are the rounds";
  EXPECT_EQ(pass_of(feed), expected);

  for (auto& batch : feed.epoch()) {
    EXPECT_EQ(numbers_of(batch), once[0]);
    break;
  }
  EXPECT_EQ(pass_of(feed), expected) << "a pass that was left is not gone on with";
}

TEST_P(EngineWorkers, a_repeat_below_a_batch_crosses_its_rounds) {
  Loader feed = Dataset::range(0, 3).repeat(2).batch(4).build(options());
  EXPECT_EQ(pass_of(feed), (std::vector<Numbers>{{0, 1, 2, 0}, {1, 2}}));
  Loader endless = Dataset::range(0, 3).repeat().batch(2).build(options());
  std::vector<Numbers> seen;
  for (auto& batch : endless.steps(3)) seen.push_back(numbers_of(batch));
  EXPECT_EQ(seen, (std::vector<Numbers>{{0, 1}, {2, 0}, {1, 2}}));
  EXPECT_EQ(endless.size(), UINT64_MAX);
}

TEST_P(EngineWorkers, an_endless_repeat_outside_goes_on_until_it_is_left) {
  Loader feed = Dataset::range(0, 3).batch(2).repeat().build(options());
  size_t count = 0;
  for (auto& batch : feed.epoch()) {
    EXPECT_EQ(numbers_of(batch)[0], count % 2 == 0 ? 0 : 2);
    if (++count == 9) break;
  }
  Loader nothing = Dataset::range(0, 0).batch(2).repeat().build(options());
  EXPECT_FALSE(nothing.next().has_value());
}

TEST_P(EngineWorkers, a_map_below_and_above_a_batch) {
  auto twice = number_op([](int64_t n, const Keys&, uint32_t) { return 2 * n; });
  Loader below = Dataset::range(0, 5).map(twice).batch(2).build(options());
  EXPECT_EQ(pass_of(below), (std::vector<Numbers>{{0, 2}, {4, 6}, {8}}));
  auto numbers = inferred_from_elements([](int64_t n, const Keys&, uint32_t) { return n + 1; });
  Loader unknown = Dataset::range(0, 130).map(numbers).batch(100).build(options());
  EXPECT_EQ(pass_of(unknown), (std::vector<Numbers>{run(1, 101), run(101, 131)}));
}

TEST_P(EngineWorkers, batches_of_batches) {
  Loader feed = Dataset::range(0, 8).batch(2).batch(3).build(options());
  std::vector<Shape> shapes;
  Numbers all;
  for (auto& batch : feed.epoch()) {
    shapes.push_back(batch.at("").shape());
    Numbers part = numbers_of(batch);
    all.insert(all.end(), part.begin(), part.end());
  }
  EXPECT_EQ(shapes, (std::vector<Shape>{{3, 2}, {1, 2}}));
  EXPECT_EQ(all, run(0, 8));
}

TEST_P(EngineWorkers, strings_become_values_and_offsets) {
  Loader feed =
      Dataset::range(8, 12).map(std::make_shared<test::TextOp>()).batch(3).build(options());
  auto batch = feed.next();
  ASSERT_TRUE(batch);
  auto text = batch->at("text").as_span<const uint8_t>();
  EXPECT_EQ(std::string(text.begin(), text.end()), "8910");
  EXPECT_EQ(numbers_of(*batch, "text/offsets"), (Numbers{0, 1, 2, 4}));
  EXPECT_EQ(numbers_of(*batch, "number"), (Numbers{8, 9, 10}));
  batch = feed.next();
  ASSERT_TRUE(batch);
  EXPECT_EQ(numbers_of(*batch, "text/offsets"), (Numbers{0, 2}));
  EXPECT_FALSE(feed.next());
}

TEST_P(EngineWorkers, random_numbers_are_the_positions_own) {
  auto draw = number_op([](int64_t, const Keys& keys, uint32_t j) {
    return static_cast<int64_t>(keys.sample(j).rng().next_u64() >> 1);
  });
  Dataset drawn = Dataset::range(0, 300).map(draw);
  LoaderOptions in_line{.seed = 5, .workers = 0};
  Loader one_by_one = drawn.batch(1).build(in_line);
  Numbers expected;
  for (const Numbers& batch : pass_of(one_by_one)) expected.push_back(batch[0]);
  LoaderOptions here = options();
  here.seed = 5;
  Loader feed = drawn.batch(300).build(here);
  EXPECT_EQ(pass_of(feed)[0], expected);
  EXPECT_NE(pass_of(feed)[0], expected) << "another epoch";
  here.seed = 6;
  Loader other = drawn.batch(300).build(here);
  EXPECT_NE(pass_of(other)[0], expected);
}

TEST(LoaderEngine, how_many_there_are_is_known_or_not) {
  EXPECT_EQ(Dataset::range(0, 10).batch(4).cardinality(), 3u);
  EXPECT_EQ(Dataset::range(0, 10).batch(4).repeat(2).cardinality(), 6u);
  EXPECT_EQ(Dataset::range(0, 10).repeat().cardinality(), kEndless);
  EXPECT_EQ(Dataset::range(0, 0).repeat().cardinality(), 0u);
  const Dataset some = Dataset::range(0, 10).filter(test::odd, "odd");
  EXPECT_EQ(some.cardinality(), std::nullopt);
  EXPECT_EQ(some.assert_cardinality(5).batch(2).cardinality(), 3u);
}

OpRef fails_at(int64_t bad, bool user) {
  auto f = [bad](int64_t n, const Keys&, uint32_t) {
    if (n % 100 == bad) throw std::runtime_error("damaged: " + std::to_string(n));
    return n;
  };
  return std::make_shared<test::NumberOp>(f, !user, user);
}

TEST_P(EngineWorkers, an_exception_comes_at_its_place_and_names_stage_and_position) {
  for (bool user : {false, true}) {
    Loader feed = Dataset::range(100, 300).map(fails_at(7, user)).batch(5).build(options());
    EXPECT_EQ(numbers_of(*feed.next()), run(100, 105));
    EXPECT_THROW(
        {
          try {
            (void)feed.next();
          } catch (const std::runtime_error& error) {
            EXPECT_STREQ(error.what(), "damaged: 107");
            throw;
          }
        },
        std::runtime_error);
    auto failure = feed.failure();
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->stage, "map(number)");
    EXPECT_EQ(failure->index, 7u);
    EXPECT_EQ(failure->step, 1u);
    EXPECT_EQ(feed.state().batches, 1u) << "the position is the failed batch";
  }
}

TEST_P(EngineWorkers, of_single_elements_those_before_an_exception_come_first) {
  for (bool user : {false, true}) {
    Loader feed = Dataset::range(0, 300).map(fails_at(7, user)).build(options());
    for (int64_t i = 0; i < 7; ++i) EXPECT_EQ(numbers_of(*feed.next())[0], i);
    EXPECT_EQ(feed.state().batches, 7u);
    EXPECT_THROW((void)feed.next(), std::runtime_error);
    EXPECT_EQ(feed.state().batches, 7u);
    EXPECT_THROW((void)feed.next(), std::runtime_error) << "it is tried again";
    LoaderState state = feed.state();
    state.batches = 8;
    feed.restore(state);
    EXPECT_EQ(numbers_of(*feed.next())[0], 8);
  }
}

TEST_P(EngineWorkers, skip_leaves_elements_out_and_counts_them) {
  for (bool user : {false, true}) {
    LoaderOptions skip = options();
    skip.on_error = OnError::kSkip;
    Loader feed = Dataset::range(0, 200).map(fails_at(7, user)).batch(5).build(skip);
    std::vector<Numbers> seen = pass_of(feed);
    ASSERT_EQ(seen.size(), 40u);
    EXPECT_EQ(seen[1], (Numbers{5, 6, 8, 9}));
    LoaderStats stats = feed.stats();
    EXPECT_EQ(stats.skipped, 2u);
    ASSERT_EQ(stats.losses.size(), 2u);
    EXPECT_EQ(stats.losses[0].index, 7u);
    EXPECT_EQ(stats.losses[0].reason, "map(number): damaged: 7");

    Loader singly = Dataset::range(0, 200).map(fails_at(7, user)).build(skip);
    Numbers elements;
    for (auto& element : singly.epoch()) {
      elements.push_back(numbers_of(element)[0]);
      uint64_t place = static_cast<uint64_t>(elements.back()) + 1;
      LoaderState state = singly.state();
      EXPECT_EQ(state.epoch * 200 + state.batches, place);
    }
    EXPECT_EQ(elements.size(), 198u);

    Loader all = Dataset::range(7, 8).map(fails_at(7, user)).batch(5).build(skip);
    EXPECT_TRUE(pass_of(all).empty());
  }
}

TEST_P(EngineWorkers, a_state_restores_at_every_element_on_any_number_of_workers) {
  auto twice = number_op([](int64_t n, const Keys&, uint32_t) { return 2 * n; });
  for (const Dataset& dataset :
       {Dataset::range(0, 150).map(twice), Dataset::range(0, 50).batch(7).repeat(2),
        Dataset::range(0, 11).repeat(5).batch(4)}) {
    Loader feed = dataset.build(options());
    std::vector<Numbers> whole = pass_of(feed);
    Loader again = dataset.build(options());
    for (size_t i = 0; i < whole.size(); ++i) {
      LoaderState state = LoaderState::from_json(again.state().to_json());
      Loader other = dataset.build({.workers = i % 3});
      other.restore(state);
      for (size_t j = i; j < std::min(i + 3, whole.size()); ++j) {
        ASSERT_EQ(numbers_of(*other.next()), whole[j]) << "at " << i;
      }
      if (i % 16 == 0) {
        other.restore(state);
        EXPECT_EQ(pass_of(other).size(), whole.size() - i) << "the rest of the pass";
      }
      ASSERT_EQ(numbers_of(*again.next()), whole[i]);
    }
  }
}

// The batches of `world` ranks from a state on, in turn.
std::vector<Numbers> ranks_from(const std::function<Dataset(uint32_t, uint32_t)>& of,
                                uint32_t world, const std::optional<LoaderState>& state,
                                uint64_t rounds, std::vector<LoaderState>* states = nullptr) {
  std::vector<Loader> feeds;
  for (uint32_t rank = 0; rank < world; ++rank) {
    feeds.push_back(of(rank, world).build({.workers = 1}));
    if (state) feeds.back().restore(LoaderState::from_json(state->to_json()));
  }
  std::vector<Numbers> all;
  for (uint64_t round = 0; round < rounds; ++round) {
    for (Loader& feed : feeds) {
      auto batch = feed.next();
      if (batch) all.push_back(numbers_of(*batch));
    }
    if (states != nullptr) states->push_back(feeds[0].state());
  }
  return all;
}

Numbers sorted(const std::vector<Numbers>& batches) {
  Numbers all;
  for (const Numbers& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  std::sort(all.begin(), all.end());
  return all;
}

TEST(LoaderEngine, a_sharded_plan_goes_on_among_another_number_of_ranks) {
  auto of = [](uint32_t rank, uint32_t world) {
    return Dataset::range(0, 121).shuffle({.seed = 3}).shard(rank, world).batch(5);
  };
  std::vector<LoaderState> states;
  std::vector<Numbers> before = ranks_from(of, 2, std::nullopt, 4, &states);
  EXPECT_EQ(states.back().batches, 8u);
  EXPECT_EQ(states.back().world, 2u);
  for (uint32_t world : {1, 2, 3}) {
    std::vector<Numbers> whole = before;
    std::vector<LoaderState> later;
    std::vector<Numbers> after = ranks_from(of, world, states.back(), 2, &later);
    whole.insert(whole.end(), after.begin(), after.end());
    // Again at another world size.
    after = ranks_from(of, 4, later.back(), 20);
    whole.insert(whole.end(), after.begin(), after.end());
    Numbers seen = sorted(whole);
    seen.resize(std::min<size_t>(seen.size(), 1000));
    seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
    EXPECT_EQ(seen, run(0, 121)) << world << " ranks";
  }
}

TEST(LoaderEngine, at_its_own_world_a_state_is_exact_to_the_random_number) {
  auto draw = number_op([](int64_t, const Keys& keys, uint32_t j) {
    return static_cast<int64_t>(keys.sample(j).rng().next_u64() >> 1);
  });
  auto of = [&](uint32_t rank, uint32_t world) {
    return Dataset::range(0, 120).shard(rank, world).map(draw).batch(5);
  };
  std::vector<LoaderState> states;
  std::vector<Numbers> whole = ranks_from(of, 2, std::nullopt, 12, &states);
  std::vector<Numbers> rest = ranks_from(of, 2, states[3], 8);
  EXPECT_EQ(rest, std::vector<Numbers>(whole.begin() + 8, whole.end()));
}

TEST(LoaderEngine, a_shard_below_a_shuffle_stays_among_its_ranks) {
  auto of = [](uint32_t rank, uint32_t world) {
    return Dataset::range(0, 60).shard(rank, world).shuffle({.seed = 3}).batch(5);
  };
  std::vector<LoaderState> states;
  (void)ranks_from(of, 2, std::nullopt, 2, &states);
  EXPECT_NO_THROW(ranks_from(of, 2, states.back(), 1));
  EXPECT_THROW(ranks_from(of, 3, states.back(), 1), Error);
}

TEST(LoaderEngine, a_state_of_another_plan_is_refused_and_says_which_stage) {
  Loader feed = Dataset::range(0, 10).batch(2).build({.workers = 0});
  Loader other = Dataset::range(0, 10).batch(3).build({.workers = 0});
  try {
    other.restore(feed.state());
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "restore: the state was taken with batch(2) as stage 1, this one has batch(3)");
  }
  EXPECT_THROW(other.restore(LoaderState{}), Error);
}

TEST(LoaderEngine, what_the_plan_decides_is_no_option) {
  auto build = [](const LoaderOptions& options) { Dataset::range(3).batch(2).build(options); };
  EXPECT_THROW(build({.batch_size = 2}), Error);
  EXPECT_THROW(build({.shuffle = true}), Error);
  EXPECT_THROW(build({.drop_last = true}), Error);
  EXPECT_THROW(build({.shard = {0, 2}}), Error);
}

TEST(LoaderEngine, closing_in_the_middle_ends_the_iteration_and_keeps_batches_valid) {
  auto slow = inferred_from_elements([](int64_t n, const Keys&, uint32_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return n;
  });
  Loader feed = Dataset::range(0, 100000).map(slow).batch(3).build({.workers = 2});
  auto held = feed.next();
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    feed.close();
  });
  EXPECT_THROW(
      {
        for (;;) (void)feed.next();
      },
      Error);
  closer.join();
  EXPECT_EQ(numbers_of(*held), run(0, 3));
}

}  // namespace
}  // namespace penstock
