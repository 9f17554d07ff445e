// Batches that several workers make together.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "numbers.h"
#include "ops.h"
#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/scheduler/window.h"

namespace penstock {
namespace {

using test::Numbers;
using test::numbers_of;
using test::pass_of;

TEST(GranulesFor, one_where_every_worker_has_a_batch_of_its_own) {
  EXPECT_EQ(granules_for({.rows = 64, .workers = 4, .window = 14, .row_ns = 1'000'000, .most = 8}),
            1u);
  EXPECT_EQ(granules_for({.rows = 64, .workers = 1, .window = 1, .first = true, .most = 8}), 1u);
  EXPECT_EQ(granules_for({.rows = 1, .workers = 4, .window = 1, .first = true, .most = 8}), 1u);
  EXPECT_EQ(granules_for({.rows = 64, .workers = 4, .window = 1, .first = true, .most = 1}), 1u);
}

TEST(GranulesFor, the_first_is_divided_among_the_workers) {
  EXPECT_EQ(granules_for({.rows = 64, .workers = 4, .window = 14, .first = true, .most = 8}), 4u);
}

TEST(GranulesFor, two_for_each_worker_where_few_batches_may_be_in_flight) {
  EXPECT_EQ(granules_for({.rows = 640, .workers = 4, .window = 1, .row_ns = 100'000, .most = 32}),
            8u);
  EXPECT_EQ(granules_for({.rows = 640, .workers = 16, .window = 3, .row_ns = 100'000, .most = 32}),
            11u);
}

TEST(GranulesFor, none_is_smaller_than_handing_it_out_is_worth) {
  EXPECT_EQ(granules_for({.rows = 64, .workers = 4, .window = 1, .row_ns = 1'000, .most = 8}), 1u);
  EXPECT_EQ(granules_for({.rows = 64, .workers = 4, .window = 1, .row_ns = 5'000, .most = 8}), 3u);
}

TEST(GranulesFor, none_is_empty) {
  for (uint32_t rows = 1; rows < 70; ++rows) {
    for (uint32_t workers = 2; workers < 40; ++workers) {
      const uint32_t most = max_granules(workers, rows);
      const uint32_t granules =
          granules_for({.rows = rows, .workers = workers, .window = 1, .most = most});
      ASSERT_GE(granules, 1u);
      ASSERT_LE(granules, std::max(most, 1u));
      const uint32_t share = (rows + granules - 1) / granules;
      ASSERT_LT((granules - 1) * share, rows) << rows << " rows, " << workers << " workers";
    }
  }
}

// ---- whole feeds: one batch in flight, rows that cost something --------------------------------

constexpr uint32_t kThree = 3;
constexpr auto kRowTakes = std::chrono::microseconds(30);

void take_some_time() {
  for (uint64_t end = now_ns() + std::chrono::nanoseconds(kRowTakes).count(); now_ns() < end;) {
  }
}

// The lambda's number, after some time; its exception is the row's failure.
OpRef costly(std::function<int64_t(int64_t)> f, bool inferred) {
  auto slow = [f = std::move(f)](int64_t n, const Keys&, uint32_t) {
    take_some_time();
    return f(n);
  };
  return std::make_shared<test::NumberOp>(slow, inferred, !inferred);
}

LoaderOptions one_at_a_time(uint32_t workers = kThree) {
  return {.workers = workers, .max_bytes = 1};
}

// Tickets beyond one per batch.
uint64_t further_tickets(const Loader& feed) {
  const LoaderStats stats = feed.stats();
  return stats.workers.tickets - std::min(stats.workers.tickets, stats.delivered);
}

class DividedBatch : public ::testing::TestWithParam<bool> {};  // whether the rows' spec is known
INSTANTIATE_TEST_SUITE_P(, DividedBatch, ::testing::Bool(), [](const auto& of) {
  return std::string(of.param ? "known" : "inferred_from_elements");
});

TEST_P(DividedBatch, batches_are_those_of_one_worker) {
  Dataset dataset = Dataset::range(0, 230)
                        .shuffle({.seed = 1})
                        .map(costly([](int64_t n) { return 3 * n; }, GetParam()))
                        .batch(50);
  Loader serial = dataset.build({.workers = 0});
  Loader feed = dataset.build(one_at_a_time());
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<Numbers> expected = pass_of(serial);
    ASSERT_EQ(expected.size(), 5u);
    EXPECT_EQ(pass_of(feed), expected);
  }
  // 13 or 14 full ones of 1.5 ms, into six parts each.
  EXPECT_GT(further_tickets(feed), 30u);
  EXPECT_EQ(further_tickets(serial), 0u);
  EXPECT_EQ(feed.stats().samples, 3u * 230u);
}

TEST_P(DividedBatch, a_batch_is_one_workers_where_each_has_one) {
  Loader feed = Dataset::range(0, 1000)
                    .map(costly([](int64_t n) { return n; }, GetParam()))
                    .batch(50)
                    .build({.workers = kThree});
  EXPECT_EQ(pass_of(feed).size(), 20u);
  // Except the first batch, for which the consumer waits, if it is known to be divisible. Meanwhile
  // the first batches of the next epoch are made.
  EXPECT_LE(further_tickets(feed), 2u + 10u + kThree);
  bool divided = false;
  for (const WorkerSnapshot& worker : feed.snapshot().workers) {
    for (const TraceEvent& event : worker.trace) {
      if (event.kind != TraceKind::kUser || event.granule == 0) continue;
      divided = true;
      EXPECT_TRUE(event.epoch == 0 && event.step == 0);
    }
  }
  EXPECT_EQ(divided, GetParam());
}

TEST_P(DividedBatch, the_first_row_that_raises_is_the_one_that_is_raised) {
  auto raises = [](int64_t n) {
    if (n == 61 || n == 75 || n == 99) throw std::runtime_error("damaged: " + std::to_string(n));
    return n;
  };
  Loader feed =
      Dataset::range(0, 150).map(costly(raises, GetParam())).batch(50).build(one_at_a_time());
  EXPECT_EQ(numbers_of(*feed.next()).size(), 50u);
  for (int again = 0; again < 3; ++again) {
    try {
      (void)feed.next();
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "damaged: 61");
    }
    EXPECT_EQ(feed.failure()->index, 61u);
    EXPECT_EQ(feed.failure()->stage, "map(number)");
    EXPECT_EQ(feed.state().batches, 1u);
  }
}

TEST_P(DividedBatch, gaps_are_closed_and_counted_wherever_they_are) {
  // Parts of a granule, ends of granules, whole granules, and all of the third batch.
  auto bad = [](int64_t n) {
    return n % 7 == 3 || n == 0 || n == 49 || (n >= 60 && n < 80) || (n >= 100 && n < 150);
  };
  auto some = [bad](int64_t n) {
    if (bad(n)) throw std::runtime_error("bad " + std::to_string(n));
    return n;
  };
  Dataset dataset = Dataset::range(0, 240).map(costly(some, GetParam())).batch(50);
  LoaderOptions options = one_at_a_time();
  options.on_error = OnError::kSkip;
  Loader feed = dataset.build(options);
  std::vector<Numbers> expected;
  std::vector<uint64_t> lost;
  for (int64_t first = 0; first < 240; first += 50) {
    Numbers batch;
    for (int64_t n = first; n < std::min<int64_t>(first + 50, 240); ++n) {
      bad(n) ? lost.push_back(static_cast<uint64_t>(n)) : batch.push_back(n);
    }
    if (!batch.empty()) expected.push_back(batch);
  }
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(pass_of(feed), expected);
  const LoaderStats stats = feed.stats();
  std::vector<uint64_t> seen;
  for (const LostItem& loss : stats.losses) {
    if (loss.epoch != 0) continue;
    seen.push_back(loss.index);
    EXPECT_EQ(loss.reason, "map(number): bad " + std::to_string(loss.index));
  }
  EXPECT_EQ(seen, lost) << "in their order";
  EXPECT_GT(further_tickets(feed), 30u);
}

TEST_P(DividedBatch, a_state_between_any_two_batches_restores) {
  Dataset dataset = Dataset::range(0, 120)
                        .shuffle({.seed = 2})
                        .map(costly([](int64_t n) { return n; }, GetParam()))
                        .batch(25);
  Loader serial = dataset.build({.workers = 0});
  std::vector<Numbers> whole = pass_of(serial);
  Loader feed = dataset.build(one_at_a_time());
  for (size_t i = 0; i < whole.size(); ++i) {
    Loader other = dataset.build(one_at_a_time(2));
    other.restore(feed.state());
    for (size_t j = i; j < whole.size(); ++j) ASSERT_EQ(numbers_of(*other.next()), whole[j]);
    ASSERT_EQ(numbers_of(*feed.next()), whole[i]);
  }
}

TEST_P(DividedBatch, behind_a_stream_too) {
  Dataset dataset = Dataset::range(0, 400)
                        .filter(test::odd, "odd")
                        .map(costly([](int64_t n) { return -n; }, GetParam()))
                        .batch(40);
  Loader serial = dataset.build({.workers = 0});
  const std::vector<Numbers> expected = pass_of(serial);
  ASSERT_EQ(expected.size(), 5u);
  Loader feed = dataset.build(one_at_a_time());
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(pass_of(feed), expected);
  EXPECT_GT(further_tickets(feed), 20u);
}

// ---- rows that do not go together --------------------------------------------------------------

// An array of as many numbers as `length` says, after some time.
auto slow_arrays(std::function<int64_t(int64_t)> length) {
  return [length = std::move(length)](const Example& element, SampleContext&) {
    take_some_time();
    const int64_t n = test::number_of(element);
    Tensor made = Tensor::make(DType::kInt64, {length(n)});
    std::ranges::fill(made.as_span<int64_t>(), n);
    return Example{{"", made}};
  };
}

TEST(Apart, batches_may_have_shapes_of_their_own) {
  auto length = [](int64_t n) { return 1 + n / 30; };
  Dataset dataset = Dataset::range(0, 150).map(slow_arrays(length), "arrays").batch(30);
  Loader serial = dataset.build({.workers = 0});
  Loader feed = dataset.build(one_at_a_time());
  for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(pass_of(feed), pass_of(serial));
  // All but the first three.
  EXPECT_GT(further_tickets(feed), 30u);
}

TEST(Apart, elements_that_differ_are_the_same_error_as_with_one_worker) {
  // Within the second batch: at a granule's end, or within one.
  for (int64_t from : {35, 45, 50, 59}) {
    auto length = [from](int64_t n) { return n < from ? 2 : 3; };
    Dataset dataset = Dataset::range(0, 150).map(slow_arrays(length), "arrays").batch(30);
    std::vector<std::string> texts;
    for (const LoaderOptions& options : {LoaderOptions{.workers = 0}, one_at_a_time()}) {
      Loader feed = dataset.build(options);
      EXPECT_TRUE(feed.next());
      try {
        (void)feed.next();
        ADD_FAILURE();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kInvalidArgument);
        texts.emplace_back(error.what());
      }
      EXPECT_EQ(feed.state().batches, 1u);
    }
    EXPECT_EQ(texts[0], texts[1]);
  }
}

TEST(Apart, behind_a_stream_too) {
  // All of one shape at first, of several in the third batch: they are not padded.
  auto length = [](int64_t n) { return n < 100 ? 2 : n % 5; };
  Dataset dataset =
      Dataset::range(0, 300).filter(test::odd, "odd").map(slow_arrays(length), "arrays").batch(25);
  std::vector<std::string> texts;
  for (const LoaderOptions& options : {LoaderOptions{.workers = 0}, one_at_a_time()}) {
    Loader feed = dataset.build(options);
    EXPECT_EQ(numbers_of(*feed.next())[0], 1);
    EXPECT_EQ(numbers_of(*feed.next())[0], 51);
    try {
      (void)feed.next();
      ADD_FAILURE();
    } catch (const Error& error) {
      texts.emplace_back(error.what());
    }
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(Apart, padded_and_ragged_batches_are_never_divided) {
  auto length = [](int64_t n) { return n % 4; };
  Dataset rows = Dataset::range(0, 100).map(slow_arrays(length), "arrays");
  for (const Dataset& dataset : {rows.padded_batch(20), rows.ragged_batch(20)}) {
    Loader feed = dataset.build(one_at_a_time());
    EXPECT_EQ(pass_of(feed).size(), 5u);
    EXPECT_LE(further_tickets(feed), 2u) << "of the next epoch";
  }
}

}  // namespace
}  // namespace penstock
