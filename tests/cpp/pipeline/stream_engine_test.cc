// Plans with a stream in a Loader: the stream reader, stream chunks, places.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "numbers.h"
#include "ops.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock {
namespace {

using test::number_of;
using test::Numbers;
using test::numbers_of;
using test::odd;
using test::pass_of;

OpRef times(int64_t factor) {
  return test::number_op([factor](int64_t n, const Keys&, uint32_t) { return factor * n; });
}

OpRef random_numbers() {
  return test::number_op([](int64_t, const Keys& keys, uint32_t j) {
    return static_cast<int64_t>(keys.sample(j).rng().next_u64() >> 1);
  });
}

class Streams : public ::testing::TestWithParam<uint32_t> {
 protected:
  LoaderOptions options() const { return {.workers = GetParam()}; }
};
INSTANTIATE_TEST_SUITE_P(, Streams, ::testing::Values(0, 1, 3));

TEST_P(Streams, batches_are_filled_with_what_is_left) {
  Dataset odds = Dataset::range(0, 21).filter(odd);
  Loader feed = odds.batch(4).build(options());
  std::vector<Numbers> expected{{1, 3, 5, 7}, {9, 11, 13, 15}, {17, 19}};
  EXPECT_EQ(pass_of(feed), expected);
  EXPECT_EQ(pass_of(feed), expected) << "again";
  expected.pop_back();
  Loader whole = odds.batch(4, {.drop_last = true}).build(options());
  EXPECT_EQ(pass_of(whole), expected);
  EXPECT_EQ(pass_of(whole), expected);
}

TEST_P(Streams, elements_come_one_by_one) {
  Loader feed = Dataset::range(0, 1000).filter(odd).map(times(3)).build(options());
  int64_t next = 1;
  for (auto& element : feed.epoch()) {
    EXPECT_EQ(number_of(element), 3 * next);
    next += 2;
  }
  EXPECT_EQ(next, 1001);
}

TEST_P(Streams, nothing_may_be_left) {
  auto none = [](const Example&, SampleContext&) { return false; };
  Loader feed = Dataset::range(0, 1000).filter(none).batch(4).build(options());
  EXPECT_TRUE(pass_of(feed).empty());
  EXPECT_TRUE(pass_of(feed).empty());
}

TEST_P(Streams, what_follows_is_made_by_tickets_and_stacks_again) {
  Loader feed = Dataset::range(0, 50).filter(odd).map(times(10)).batch(2).batch(3).build(options());
  std::vector<Shape> shapes;
  Numbers all;
  for (auto& batch : feed.epoch()) {
    shapes.push_back(batch.at("").shape());
    Numbers part = numbers_of(batch);
    all.insert(all.end(), part.begin(), part.end());
  }
  // 25 odd numbers: 12 pairs and a single one, which cannot be stacked with pairs.
  EXPECT_EQ(shapes, (std::vector<Shape>{{3, 2}, {3, 2}, {3, 2}, {3, 2}, {1, 1}}));
  EXPECT_EQ(all.size(), 25u);
  EXPECT_EQ(all.back(), 490);
}

TEST_P(Streams, filters_of_filters_and_functions_over_batches) {
  auto thirds = [](const Example& e, SampleContext&) { return number_of(e) % 3 == 0; };
  Dataset chain = Dataset::range(0, 100).map(times(2)).filter(thirds).map(times(1));
  Loader feed = chain.filter([](const Example& e, SampleContext&) { return number_of(e) > 60; })
                    .batch(5)
                    .build(options());
  EXPECT_EQ(pass_of(feed)[0], (Numbers{66, 72, 78, 84, 90}));
  Loader batches =
      Dataset::range(0, 30)
          .batch(4)
          .filter([](const Example& e, SampleContext&) { return numbers_of(e)[0] % 8 == 0; })
          .build(options());
  EXPECT_EQ(
      pass_of(batches),
      (std::vector<Numbers>{{0, 1, 2, 3}, {8, 9, 10, 11}, {16, 17, 18, 19}, {24, 25, 26, 27}}));
}

TEST_P(Streams, a_state_restores_at_every_element_on_any_number_of_workers) {
  Dataset drawn = Dataset::range(0, 300).shuffle({.seed = 4}).filter(odd).map(random_numbers());
  for (const Dataset& dataset : {drawn, drawn.batch(7), drawn.batch(7).repeat(2),
                                 drawn.batch(3).map(test::inferred_from_elements(
                                     [](int64_t n, const Keys&, uint32_t) { return n; })),
                                 drawn.filter(odd)}) {
    Loader feed = dataset.build(options());
    std::vector<Numbers> whole = pass_of(feed), second = pass_of(feed);
    ASSERT_NE(whole, second);
    Loader again = dataset.build(options());
    for (size_t i = 0; i < whole.size(); ++i) {
      LoaderState state = LoaderState::from_json(again.state().to_json());
      if (i % 3 == 0) {
        Loader other = dataset.build({.workers = i % 4});
        other.restore(state);
        EXPECT_EQ(other.state(), state);
        for (size_t j = i; j < std::min(i + 3, whole.size()); ++j) {
          auto next = other.next();
          ASSERT_TRUE(next) << "at " << i << " of " << whole.size() << ": " << state.to_json();
          ASSERT_EQ(numbers_of(*next), whole[j]) << "at " << i;
        }
        if (i % 24 == 0) {
          other.restore(state);
          EXPECT_EQ(pass_of(other).size(), whole.size() - i) << state.to_json();
          EXPECT_EQ(pass_of(other), second) << "the next pass";
        }
      }
      ASSERT_EQ(numbers_of(*again.next()), whole[i]);
    }
  }
}

TEST_P(Streams, a_pass_that_was_left_is_followed_by_the_next) {
  Dataset dataset = Dataset::range(0, 300).shuffle({.seed = 4}).filter(odd).batch(7);
  Loader feed = dataset.build(options());
  (void)pass_of(feed);
  std::vector<Numbers> second = pass_of(feed);
  Loader other = dataset.build(options());
  for (auto& batch : other.epoch()) {
    (void)batch;
    break;
  }
  EXPECT_EQ(pass_of(other), second);
  LoaderState state = other.state();
  EXPECT_EQ(state.epoch, 2u);
  EXPECT_EQ(state.batches, 0u);
}

bool fails_at_31(const Example& element, SampleContext& sample) {
  if (number_of(element) == 31) throw std::runtime_error("no 31");
  return odd(element, sample);
}

TEST_P(Streams, an_exception_comes_at_its_place) {
  Dataset dataset = Dataset::range(0, 100).filter(fails_at_31, "fails");
  Loader feed = dataset.batch(4).build(options());
  for (int i = 0; i < 3; ++i) (void)*feed.next();
  for (int again = 0; again < 2; ++again) {
    EXPECT_THROW((void)feed.next(), std::runtime_error);
    EXPECT_EQ(feed.state().batches, 3u);
    auto failure = feed.failure();
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->index, 31u);
    EXPECT_EQ(failure->stage, "filter(fails)");
  }
  Loader singly = dataset.build(options());
  for (int64_t n = 1; n < 31; n += 2) EXPECT_EQ(number_of(*singly.next()), n);
  EXPECT_EQ(singly.state().batches, 15u);
  EXPECT_THROW((void)singly.next(), std::runtime_error);
  EXPECT_EQ(singly.state().batches, 15u);
}

TEST_P(Streams, skip_leaves_out_and_counts) {
  LoaderOptions skip = options();
  skip.on_error = OnError::kSkip;
  Loader feed = Dataset::range(0, 100).filter(fails_at_31, "fails").batch(7).build(skip);
  Numbers all;
  for (const Numbers& batch : pass_of(feed)) all.insert(all.end(), batch.begin(), batch.end());
  EXPECT_EQ(all.size(), 49u);
  EXPECT_EQ(std::count(all.begin(), all.end(), 31), 0);
  LoaderStats stats = feed.stats();
  EXPECT_EQ(stats.skipped, 1u);
  ASSERT_EQ(stats.losses.size(), 1u);
  EXPECT_EQ(stats.losses[0].index, 31u);
  EXPECT_EQ(stats.losses[0].reason, "filter(fails): no 31");
}

bool fails_at_99(const Example& element, SampleContext& sample) {
  if (number_of(element) % 100 == 99) throw std::runtime_error("no 99");
  return odd(element, sample);
}

TEST_P(Streams, what_is_lost_behind_the_last_batch_counts_too) {
  LoaderOptions skip = options();
  skip.on_error = OnError::kSkip;
  auto none = [](const Example& element, SampleContext&) { return number_of(element) > 50; };
  for (const Dataset& dataset :
       {Dataset::range(0, 100).filter(fails_at_99, "fails").batch(7),
        Dataset::range(98, 100).filter(fails_at_99, "fails").batch(7),
        Dataset::range(0, 100).filter(fails_at_99, "fails").map(times(1)).filter(none).batch(7)}) {
    Loader feed = dataset.build(skip);
    (void)pass_of(feed);
    EXPECT_EQ(feed.stats().skipped, 1u);
    (void)pass_of(feed);
    EXPECT_EQ(feed.stats().skipped, 2u);
    ASSERT_EQ(feed.stats().losses.size(), 2u);
    EXPECT_EQ(feed.stats().losses[0].epoch, 0u);
    EXPECT_EQ(feed.stats().losses[1].epoch, 1u);
  }
}

TEST_P(Streams, closing_in_the_middle_ends_the_iteration) {
  auto slow = [](const Example& element, SampleContext& sample) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    return odd(element, sample);
  };
  Loader feed = Dataset::range(0, 1'000'000).filter(slow).batch(3).build(options());
  auto held = feed.next();
  if (GetParam() != 0) {
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
  }
  feed.close();
  EXPECT_EQ(numbers_of(*held), (Numbers{1, 3, 5}));
}

TEST(StreamEngine, a_stream_that_never_gives_anything_can_be_closed) {
  auto none = [](const Example&, SampleContext&) { return false; };
  Loader feed =
      Dataset::range(0, 10).repeat().filter(none).filter(none).batch(2).build({.workers = 1});
  std::thread closer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    feed.close();
  });
  EXPECT_THROW((void)feed.next(), Error);
  closer.join();
}

TEST_P(Streams, many_states_of_many_feeds_leave_nothing_behind) {
  Dataset dataset = Dataset::range(0, 5000).filter(odd).batch(16);
  for (int round = 0; round < 20; ++round) {
    Loader feed = dataset.build(options());
    LoaderState state = feed.state();
    for (int i = 0; i < round; ++i) (void)feed.next();
    feed.restore(state);
    EXPECT_EQ(numbers_of(*feed.next())[0], 1);
  }
}

TEST(StreamEngine, what_needs_indices_says_so) {
  try {
    Dataset::range(0, 10).filter(odd).shuffle({.seed = 1}).build({.workers = 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "shuffle(seed=1): cannot follow filter(function), whose elements only come one "
                 "after the other: give shuffle a buffer");
  }
}

// Large elements of a stream count against max_bytes, even if the tail makes them small.
TEST(StreamBytes, elements_on_their_way_to_batches_stay_within_the_budget) {
  constexpr int64_t kBytes = 256 << 10, kBudget = 64;
  std::atomic<int64_t> made{0};
  const auto large = [&made](uint64_t) {
    return [&made]() -> std::optional<Example> {
      ++made;
      return Example{{"x", Tensor::make(DType::kUint8, {kBytes})}};
    };
  };
  const auto small = [](const Example& element, SampleContext&) {
    Tensor size = Tensor::make(DType::kInt64, {});
    size.as_span<int64_t>()[0] = element.at("x").shape()[0];
    return Example{{"size", size}};
  };
  Loader feed = Dataset::generator(large)
                    .map(small, "small")
                    .batch(4)
                    .prefetch(60)
                    .build({.workers = 2, .max_bytes = kBudget * kBytes});
  for (int64_t taken = 4; taken < 400; taken += 4) {
    ASSERT_TRUE(feed.next());
    std::this_thread::sleep_for(std::chrono::milliseconds(taken % 40 == 0 ? 20 : 0));
    // Beyond the budget: elements of the next stream chunk, and delivered ones.
    ASSERT_LE(made - taken, kBudget + 2 * 4);
  }
}

}  // namespace
}  // namespace penstock
