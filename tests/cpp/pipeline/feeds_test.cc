#include "penstock/pipeline/api/feeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <thread>

#include "numbers.h"
#include "penstock/base/error.h"

namespace penstock {
namespace {

using test::Numbers;
using test::numbers_of;
using test::pass_of;

Dataset numbered(int64_t batches) {
  return Dataset::range(0, batches * 4).shuffle({.seed = 5}).batch(4);
}

std::vector<Numbers> rest_of(Feeds::Feed& feed) {
  std::vector<Numbers> all;
  while (auto batch = feed.next()) all.push_back(numbers_of(*batch));
  return all;
}

// Each consumer on a thread of its own.
void each(Feeds& feeds, const std::function<void(uint32_t)>& run) {
  std::vector<std::thread> threads;
  for (uint32_t c = 0; c < feeds.size(); ++c) threads.emplace_back(run, c);
  for (std::thread& thread : threads) thread.join();
}

class FeedsWorkers : public ::testing::TestWithParam<uint32_t> {
 protected:
  LoaderOptions options() const { return {.workers = GetParam(), .max_queue_size = 3}; }
};
INSTANTIATE_TEST_SUITE_P(, FeedsWorkers, ::testing::Values(0, 1, 3));

TEST_P(FeedsWorkers, batch_i_goes_to_consumer_i_mod_n_pass_after_pass) {
  for (uint32_t n : {1u, 2u, 3u}) {
    Loader one = numbered(10).build({.workers = 0});
    Feeds feeds(numbered(10), n, options());
    for (int pass = 0; pass < 3; ++pass) {
      const auto expected = pass_of(one);
      std::vector<std::vector<Numbers>> got(n);
      each(feeds, [&](uint32_t c) { got[c] = rest_of(feeds[c]); });
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_LT(i / n, got[i % n].size());
        EXPECT_EQ(got[i % n][i / n], expected[i]) << n << ", " << i;
      }
    }
    for (uint32_t c = 0; c < n; ++c) {
      EXPECT_EQ(feeds.counts()[c].taken, 3 * (10 / n + (c < 10 % n)));
      EXPECT_EQ(feeds.counts()[c].dropped, 0u);
    }
  }
}

TEST_P(FeedsWorkers, a_state_before_every_batch_restores_with_any_number_of_consumers) {
  const uint64_t count = 11;
  Loader one = numbered(count).build({.workers = 0});
  const auto expected = pass_of(one), second = pass_of(one);
  // Consumers at different paces; the queue is 3.
  const std::vector<uint32_t> order{0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0};
  Feeds feeds(numbered(count), 2, options());
  std::vector<bool> taken(count, false);
  std::vector<uint64_t> next{0, 1};
  for (uint32_t c : order) {
    const std::string state = feeds.state();
    for (uint32_t others : {1u, 2u, 3u}) {
      Feeds other(numbered(count), others, options());
      other.restore(state);
      EXPECT_EQ(other.state(), [&] {
        std::string same = state;
        same.replace(same.find("\"feeds\":2"), 9, "\"feeds\":" + std::to_string(others));
        return same;
      }());
      std::vector<std::vector<Numbers>> got(others);
      each(other, [&](uint32_t own) { got[own] = rest_of(other[own]); });
      std::vector<std::vector<Numbers>> wanted(others);
      for (uint64_t i = 0; i < count; ++i) {
        if (!taken[i]) wanted[i % others].push_back(expected[i]);
      }
      EXPECT_EQ(got, wanted) << state;
      each(other, [&](uint32_t own) { got[own] = rest_of(other[own]); });
      for (uint64_t i = 0; i < count; ++i) EXPECT_EQ(got[i % others][i / others], second[i]);
    }
    auto batch = feeds[c].next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(numbers_of(*batch), expected[next[c]]);
    taken[next[c]] = true;
    next[c] += 2;
  }
}

TEST_P(FeedsWorkers, one_that_is_closed_keeps_nobody_waiting) {
  Feeds feeds(numbered(20), 2, options());
  ASSERT_TRUE(feeds[0].next());
  feeds[1].close();
  EXPECT_EQ(rest_of(feeds[0]).size(), 9u);
  EXPECT_EQ(rest_of(feeds[0]).size(), 10u) << "the next pass";
  EXPECT_EQ(feeds.counts()[1].dropped, 20u);
  EXPECT_THROW(feeds[1].next(), Error);
}

TEST_P(FeedsWorkers, closing_one_wakes_who_waits_for_it) {
  Feeds feeds(numbered(40), 2, options());
  std::latch ahead(1);
  size_t taken = 0;
  std::thread other([&] {
    while (auto batch = feeds[0].next()) {
      if (++taken == 3) ahead.count_down();
    }
  });
  ahead.wait();  // it stops a little later, when 3 batches wait for the other consumer
  feeds[1].close();
  other.join();
  EXPECT_EQ(taken, 20u);
  EXPECT_EQ(feeds.counts()[1].dropped, 20u);
}

TEST_P(FeedsWorkers, one_far_ahead_waits_for_the_slowest) {
  Feeds feeds(numbered(40), 2, options());
  std::atomic<int> taken{0};
  std::thread other([&] {
    while (auto batch = feeds[0].next()) ++taken;
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(taken.load(), i + 5) << "3 wait, one is in hand, and it is one ahead anyway";
    ASSERT_TRUE(feeds[1].next());
  }
  EXPECT_FALSE(feeds[1].next());
  other.join();
  EXPECT_EQ(taken, 20);
}

TEST_P(FeedsWorkers, a_pass_left_in_the_middle_drops_what_was_left) {
  Feeds feeds(numbered(10), 2, options());
  Loader one = numbered(10).build({.workers = 0});
  pass_of(one);
  const auto second = pass_of(one);
  ASSERT_TRUE(feeds[0].next());
  ASSERT_TRUE(feeds[1].next());
  feeds[1].begin();
  feeds[1].begin();  // no batch of that pass was taken
  EXPECT_EQ(rest_of(feeds[0]).size(), 4u);
  std::vector<std::vector<Numbers>> got(2);
  each(feeds, [&](uint32_t c) { got[c] = rest_of(feeds[c]); });
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(got[i % 2][i / 2], second[i]);
  EXPECT_EQ(feeds.counts()[1].dropped, 4u);
}

TEST_P(FeedsWorkers, a_failure_goes_to_its_owner_and_ends_the_pass_for_all) {
  std::atomic<bool> fails{true};
  auto refuse = [&](const Example& element, SampleContext&) {
    if (fails && element.at("").as_span<const int64_t>()[0] == 21) throw std::runtime_error("no");
    return element;
  };
  Feeds feeds(Dataset::range(0, 40).map(refuse).batch(4), 2, options());
  // 21 is in batch 5, the third of consumer 1.
  std::vector<size_t> taken(2);
  std::vector<std::string> errors(2);
  each(feeds, [&](uint32_t c) {
    try {
      while (feeds[c].next()) ++taken[c];
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kClosed);
      errors[c] = error.what();
    } catch (const std::runtime_error& error) {
      errors[c] = error.what();
    }
  });
  EXPECT_EQ(taken, (std::vector<size_t>{3, 2}));
  EXPECT_EQ(errors[1], "no");
  EXPECT_EQ(errors[0],
            "feeds: batch 5, which is consumer 1's, failed, and with it the pass for all: no");
  const std::string state = feeds.state();
  EXPECT_NE(state.find("\"index\":5,\"taken\":[]"), std::string::npos) << state;
  fails = false;
  feeds.restore(state);
  each(feeds, [&](uint32_t c) { taken[c] = rest_of(feeds[c]).size(); });
  EXPECT_EQ(taken, (std::vector<size_t>{2, 3})) << "batches 5 to 9";
  each(feeds, [&](uint32_t c) { taken[c] = rest_of(feeds[c]).size(); });
  EXPECT_EQ(taken, (std::vector<size_t>{5, 5}));
}

TEST_P(FeedsWorkers, closing_all_ends_whoever_waits) {
  Feeds feeds(numbered(100), 2, options());
  std::latch ahead(1);
  std::thread other([&] {
    int taken = 0;
    EXPECT_THROW(
        {
          while (feeds[0].next()) {
            if (++taken == 2) ahead.count_down();
          }
        },
        Error);
  });
  ahead.wait();
  feeds.close();
  other.join();
  EXPECT_THROW(feeds[1].next(), Error);
  EXPECT_THROW(feeds.restore(feeds.state()), Error);
}

TEST_P(FeedsWorkers, patience_ends_with_the_name_of_who_is_waited_for) {
  Feeds feeds(numbered(100), 2, options(), std::chrono::milliseconds(1));
  try {
    while (feeds[0].next()) {
    }
    ADD_FAILURE() << "nobody took the other's";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_NE(std::string(error.what()).find("for consumer 1, for which 3 batches wait"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(feeds[1].next());
  EXPECT_TRUE(feeds[0].next()) << "and it goes on";
}

TEST_P(FeedsWorkers, of_a_stream_and_of_single_elements) {
  auto odd = [](const Example& element, SampleContext&) {
    return element.at("").as_span<const int64_t>()[0] % 2 == 1;
  };
  for (const Dataset& dataset :
       {Dataset::range(0, 60).filter(odd).batch(4).repeat(2), Dataset::range(0, 50),
        Dataset::range(0, 60).filter(odd).shuffle({.seed = 1, .buffer = 4})}) {
    Loader one = dataset.build({.workers = 0});
    const auto expected = pass_of(one);
    Feeds feeds(dataset, 2, options());
    for (uint64_t i = 0; i < expected.size(); ++i) {
      const std::string state = feeds.state();
      auto batch = feeds[i % 2].next();
      ASSERT_TRUE(batch);
      EXPECT_EQ(numbers_of(*batch), expected[i]);
      if (i % 7 != 3) continue;
      Feeds other(dataset, 1, options());
      other.restore(state);
      EXPECT_EQ(rest_of(other[0]), std::vector<Numbers>(expected.begin() + i, expected.end()));
    }
    EXPECT_FALSE(feeds[0].next());
    EXPECT_FALSE(feeds[1].next());
  }
}

// A source of batches of some bytes, pass after pass.
class Numbered : public FeedsHub::Source {
 public:
  Numbered(uint64_t batches, uint64_t bytes, uint64_t max_bytes = UINT64_MAX)
      : batches_(batches), bytes_(bytes), budget_(max_bytes) {}
  void begin_pass() override {
    EXPECT_EQ(at_work_.exchange(true), false) << "one at a time";
    next_ = 0;
    at_work_ = false;
  }
  FeedsHub::Pulled pull() override {
    EXPECT_EQ(at_work_.exchange(true), false) << "one at a time";
    FeedsHub::Pulled pulled;
    if (next_ < batches_) {
      pulled.item = FeedsHub::Item{std::make_shared<uint64_t>(next_++), bytes_};
    }
    at_work_ = false;
    return pulled;
  }
  FeedsHub::Place place() override { return {}; }
  void restore(const LoaderState&) override {}
  void close() override {}
  ByteBudget& budget() override { return budget_; }

 private:
  const uint64_t batches_, bytes_;
  ByteBudget budget_;
  uint64_t next_ = 0;
  std::atomic<bool> at_work_{false};
};

TEST(FeedsHub, bytes_that_wait_are_bounded) {
  FeedsHub::Options options;
  options.consumers = 2;
  options.most = 100;
  options.own_patience_ns = 1'000'000;
  FeedsHub hub(std::make_unique<Numbered>(100, 60, 240), options);
  FeedsHub::Item item;
  std::string text;
  EXPECT_EQ(hub.next(1, -1, item), FeedsHub::Next::kBatch);
  try {
    while (hub.next(0, -1, item) == FeedsHub::Next::kBatch) {
    }
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_NE(text.find("for which 3 batches wait; this thread used both"), std::string::npos)
      << text;
}

TEST(FeedsHub, one_batch_of_each_consumer_may_wait_however_little_space_there_is) {
  FeedsHub::Options options;
  options.consumers = 4;
  auto source = std::make_unique<Numbered>(100, 60, 1);
  const ByteBudget& budget = source->budget();
  FeedsHub hub(std::move(source), options);
  FeedsHub::Item item;
  EXPECT_EQ(hub.next(3, -1, item), FeedsHub::Next::kBatch);
  EXPECT_EQ(*static_cast<uint64_t*>(item.value.get()), 3u);
  EXPECT_EQ(budget.used(), 4 * 60u) << "reserved for each";
  EXPECT_EQ(hub.next(3, 1'000'000, item), FeedsHub::Next::kWait);
  for (uint32_t c = 0; c < 3; ++c) EXPECT_EQ(hub.next(c, -1, item), FeedsHub::Next::kBatch);
  EXPECT_EQ(hub.next(3, -1, item), FeedsHub::Next::kBatch);
  hub.close(2);
  EXPECT_EQ(budget.used(), 3 * 60u);
}

TEST(FeedsHub, whatever_consumers_do_nobody_hangs_and_batches_are_counted) {
  constexpr uint32_t kConsumers = 4;
  constexpr uint64_t kBatches = 50, kPasses = 20;
  FeedsHub::Options options;
  options.consumers = kConsumers;
  options.most = 3;
  FeedsHub hub(std::make_unique<Numbered>(kBatches, 1), options);
  std::vector<std::thread> threads;
  for (uint32_t c = 0; c < kConsumers; ++c) {
    threads.emplace_back([&, c] {
      FeedsHub::Item item;
      for (uint64_t pass = 0; pass < kPasses; ++pass) {
        hub.begin(c);
        uint64_t next = c;
        for (;;) {
          const auto found = hub.next(c, -1, item);
          if (found == FeedsHub::Next::kEnd) break;
          ASSERT_EQ(*static_cast<uint64_t*>(item.value.get()), next);
          next += kConsumers;
          if (c == 1 && next > kBatches / 2) break;  // leaves each pass early
          if (c == 2 && pass == 7) return hub.close(2);
          if (c == 3) hub.state();
        }
        if (c == 0 || c == 3) {
          EXPECT_GE(next, kBatches) << c;
        }
      }
      hub.close(c);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto counts = hub.counts();
  EXPECT_EQ(counts[0].taken, kPasses * 13);
  EXPECT_EQ(counts[0].dropped, 0u);
  EXPECT_EQ(counts[1].taken, kPasses * 7);
  EXPECT_EQ(counts[2].taken, 7 * 12 + 1u);
  EXPECT_EQ(counts[3].taken, kPasses * 12);
}

TEST(Feeds, states_that_are_none_are_refused) {
  Feeds feeds(numbered(10), 2, {.workers = 0});
  ASSERT_TRUE(feeds[0].next());
  const std::string state = feeds.state();
  Feeds other(Dataset::range(0, 40).batch(4), 2, {.workers = 0});
  for (const std::string& wrong :
       {std::string(), std::string("7"), std::string("{}"), std::string("{\"feeds\":2}"), state}) {
    EXPECT_THROW(other.restore(wrong), Error) << wrong;
  }
  EXPECT_TRUE(other[0].next()) << "nothing has changed";
  EXPECT_THROW(Feeds(numbered(3), 0), Error);
  EXPECT_THROW(other[2], Error);
}

}  // namespace
}  // namespace penstock
