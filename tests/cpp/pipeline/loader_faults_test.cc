// Failures of a dataset, and a C++ Loader that is stuck in one.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "datasets.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/api/loader.h"
#include "penstock/pipeline/scheduler/order.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using testing::flat;
using testing::Gate;
using testing::iota;
using testing::item;
using testing::kWorkers;
using testing::Made;
using testing::NumberedSamples;
using testing::numbers;
using testing::take_epoch;

// An exception of user code that is unrelated to penstock's.
struct Broken {
  uint64_t index;
};

// Throws Broken at each of `bad`, `times` times for each index (0: always).
class Faulty {
 public:
  Faulty(uint64_t length, std::set<uint64_t> bad, int times = 0)
      : length_(length), bad_(std::move(bad)), times_(times) {}
  uint64_t size() const { return length_; }
  Example get(uint64_t index, SampleContext&) {
    if (bad_.contains(index)) {
      std::lock_guard lock(mutex_);
      if (times_ == 0 || ++thrown_[index] <= times_) throw Broken{index};
    }
    return item(index);
  }

 private:
  uint64_t length_;
  std::set<uint64_t> bad_;
  int times_;
  std::mutex mutex_;
  std::map<uint64_t, int> thrown_;
};

// ---- errors -------------------------------------------------------------------------------------

TEST(LoaderErrors, an_exception_arrives_as_itself_at_its_place) {
  for (uint32_t workers : kWorkers) {
    for (bool samples : {true, false}) {
      auto dataset = std::make_shared<Faulty>(40, std::set<uint64_t>{17});
      Loader feed(dataset, {.batch_size = samples ? 4u : 0u, .workers = workers});
      uint64_t taken = 0;
      try {
        for ([[maybe_unused]] auto& batch : feed.epoch()) ++taken;
        FAIL();
      } catch (const Broken& broken) {
        EXPECT_EQ(broken.index, 17u);
      }
      EXPECT_EQ(taken, samples ? 4u : 17u);
      EXPECT_EQ(feed.state().batches, taken);
      auto failure = feed.failure();
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->index, 17u);
      EXPECT_EQ(failure->epoch, 0u);
      EXPECT_EQ(failure->step, taken);
      EXPECT_EQ(feed.stats().errors, 1u);
    }
  }
}

TEST(LoaderErrors, after_an_exception_next_tries_the_batch_again) {
  for (uint32_t workers : kWorkers) {
    // A short queue: index 5 of the next epoch must not throw before that of this one does.
    Loader feed(std::make_shared<Faulty>(20, std::set<uint64_t>{5, 13}, 1),
                {.batch_size = 4, .workers = workers, .max_queue_size = 1});
    std::vector<int64_t> all;
    int errors = 0;
    for (bool more = true; more;) {
      try {
        auto batch = feed.next();
        more = batch.has_value();
        if (batch) {
          for (int64_t index : numbers(*batch)) all.push_back(index);
        }
      } catch (const Broken&) {
        ++errors;
      }
    }
    EXPECT_GE(errors, 1);  // an early exception was taken back with its ticket
    EXPECT_LE(errors, 2);
    EXPECT_EQ(all, iota(20));
  }
}

// As in Python: the pass that failed is over, even if its first batch failed.
TEST(LoaderErrors, after_an_exception_a_new_iteration_is_the_next_epoch) {
  for (uint32_t workers : kWorkers) {
    Loader feed(std::make_shared<Faulty>(20, std::set<uint64_t>{1}, 1),
                {.batch_size = 4, .workers = workers, .max_queue_size = 1});
    EXPECT_THROW(take_epoch(feed), Broken);
    EXPECT_EQ(flat(take_epoch(feed)), iota(20));
    EXPECT_EQ(feed.state().epoch, 2u);
  }
}

TEST(LoaderErrors, an_epoch_that_was_finished_after_an_exception_is_followed_by_the_next) {
  Loader feed(std::make_shared<Faulty>(8, std::set<uint64_t>{1}, 1),
              {.batch_size = 4, .workers = 0});
  EXPECT_THROW(feed.next(), Broken);
  while (feed.next()) {
  }
  EXPECT_EQ(flat(take_epoch(feed)), iota(8));
  EXPECT_EQ(feed.state().epoch, 2u);
}

TEST(LoaderErrors, retries_are_silent_and_counted) {
  for (uint32_t workers : kWorkers) {
    Loader feed(std::make_shared<Faulty>(20, std::set<uint64_t>{3, 13}, 2),
                {.batch_size = 4, .workers = workers, .retries = 2});
    EXPECT_EQ(flat(take_epoch(feed)), iota(20));
    EXPECT_EQ(feed.stats().retried, 4u);
    EXPECT_EQ(feed.stats().errors, 0u);
    EXPECT_TRUE(feed.stats().losses.empty());
  }
}

TEST(LoaderErrors, skip_leaves_out_and_counts) {
  for (uint32_t workers : kWorkers) {
    for (uint64_t size : {0, 1, 6}) {
      std::set<uint64_t> bad{0, 7, 8, 19};
      Loader feed(std::make_shared<Faulty>(20, bad),
                  {.batch_size = size, .workers = workers, .on_error = OnError::kSkip});
      std::vector<int64_t> expected;
      for (int64_t index : iota(20)) {
        if (!bad.contains(uint64_t(index))) expected.push_back(index);
      }
      EXPECT_EQ(flat(take_epoch(feed)), expected);
      LoaderStats stats = feed.stats();
      EXPECT_EQ(stats.skipped, 4u);
      EXPECT_EQ(stats.replaced, 0u);
      EXPECT_EQ(stats.delivered, size == 6 ? 4u : 16u);
      std::set<uint64_t> lost;
      for (const LostItem& loss : stats.losses) lost.insert(loss.index);
      EXPECT_EQ(lost, bad);
    }
  }
}

TEST(LoaderErrors, an_epoch_of_which_all_is_skipped_is_empty) {
  for (uint32_t workers : kWorkers) {
    Loader feed(std::make_shared<Faulty>(3, std::set<uint64_t>{0, 1, 2}),
                {.batch_size = 2, .workers = workers, .on_error = OnError::kSkip});
    EXPECT_TRUE(take_epoch(feed).empty());
    EXPECT_EQ(feed.stats().skipped, 3u);
    EXPECT_EQ(feed.state().epoch, 1u);
  }
}

TEST(LoaderErrors, replace_keeps_batches_full_and_equal_everywhere) {
  std::vector<int64_t> expected;
  for (uint32_t workers : kWorkers) {
    std::set<uint64_t> bad{2, 9, 10};
    Loader feed(
        std::make_shared<Faulty>(24, bad),
        {.batch_size = 6, .shuffle = true, .workers = workers, .on_error = OnError::kReplace});
    std::vector<int64_t> all = flat(take_epoch(feed));
    EXPECT_EQ(all.size(), 24u);
    for (int64_t index : all) EXPECT_FALSE(bad.contains(uint64_t(index)));
    if (workers == 0) expected = all;
    EXPECT_EQ(all, expected);
    EXPECT_EQ(feed.stats().replaced, 3u);
    EXPECT_EQ(feed.stats().losses.size(), 3u);
  }
  Order order({.length = 24, .batch_size = 6, .shuffle = true});
  std::vector<uint64_t> indices(6);
  for (uint64_t step = 0; step < 4; ++step) {
    order.indices(0, 0, step, 0, indices);
    for (uint64_t row = 0; row < 6; ++row) {
      auto got = uint64_t(expected[step * 6 + row]);
      if (got == indices[row]) continue;
      bool one_of_them = false;
      for (uint32_t n = 0; n < 6; ++n) {
        one_of_them |= got == order.replacement(0, order.position(0, step, row), n);
      }
      EXPECT_TRUE(one_of_them);
    }
  }
}

TEST(LoaderErrors, when_nothing_can_replace_it_is_an_error) {
  std::set<uint64_t> all{0, 1, 2, 3, 4, 5, 6, 7};
  for (uint32_t workers : kWorkers) {
    Loader feed(std::make_shared<Faulty>(8, all),
                {.batch_size = 4, .workers = workers, .on_error = OnError::kReplace});
    EXPECT_THROW(take_epoch(feed), Broken);
  }
}

TEST(LoaderErrors, a_sample_is_not_replaced_by_itself) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Loader feed(std::make_shared<Faulty>(3, std::set<uint64_t>{1}),
                {.batch_size = 1, .seed = seed, .workers = 0, .on_error = OnError::kReplace});
    EXPECT_EQ(take_epoch(feed).size(), 3u) << seed;
  }
}

TEST(LoaderErrors, ragged_samples_are_named_with_their_shapes) {
  for (uint32_t workers : kWorkers) {
    Made ragged(16, [](uint64_t index, SampleContext&) {
      return Example{{"x", testing::filled({index == 11 ? 3 : 2, 5}, 0)}};
    });
    Loader feed(ragged, {.batch_size = 16, .workers = workers});
    try {
      take_epoch(feed);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      std::string text = error.what();
      EXPECT_NE(text.find("'x' of element 0 has shape (2, 5), of element 11 (3, 5)"),
                std::string::npos)
          << text;
    }
  }
}

TEST(LoaderErrors, shuffled_samples_are_named_by_their_indices) {
  Made ragged(16, [](uint64_t index, SampleContext&) {
    return Example{{"x", testing::filled({index == 11 ? 3 : 2}, 0)}};
  });
  Loader feed(ragged, {.batch_size = 16, .shuffle = true, .seed = 5, .workers = 0});
  try {
    take_epoch(feed);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("of element 11 (3,)"), std::string::npos)
        << error.what();
  }
}

TEST(LoaderErrors, samples_without_data_are_refused) {
  Loader none(Made(4, [](uint64_t, SampleContext&) { return Example(); }), {.batch_size = 2});
  EXPECT_THROW(take_epoch(none), Error);
  Loader hollow(Made(4,
                     [](uint64_t, SampleContext&) {
                       return Example{{"x", Tensor()}};
                     }),
                {.batch_size = 2});
  EXPECT_THROW(take_epoch(hollow), Error);
}

// A closed Loader inside a dataset throws kClosed: that is an error of user code.
TEST(LoaderErrors, an_error_of_our_own_kind_from_user_code_is_its_exception) {
  for (Code code : {Code::kClosed, Code::kOutOfMemory, Code::kTimeout}) {
    Loader feed(
        Made(4, [code](uint64_t, SampleContext&) -> Example { throw Error(code, "user", "code"); }),
        {.batch_size = 2, .workers = 2});
    try {
      take_epoch(feed);
      FAIL();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "user: code");
    }
  }
}

TEST(LoaderErrors, a_hooks_exception_reaches_the_consumer) {
  struct Bad : NumberedSamples {
    Bad() : NumberedSamples(4) {}
    void on_epoch_end() { throw Broken{99}; }
  };
  Loader feed(Bad(), {.batch_size = 2, .workers = 1});
  EXPECT_THROW(take_epoch(feed), Broken);
  EXPECT_EQ(numbers(*feed.next(), "index").size(), 2u);  // the hook is not called again
  EXPECT_EQ(feed.state().epoch, 1u);
}

// ---- timeouts -----------------------------------------------------------------------------------

TEST(LoaderTimeouts, a_stuck_ticket_is_an_error_that_names_it) {
  auto gate = std::make_shared<Gate>();
  Loader feed(Made(16,
                   [gate](uint64_t index, SampleContext& context) {
                     if (index == 9 && context.epoch() == 0) gate->wait();
                     return item(index);
                   }),
              {.batch_size = 4, .workers = 2, .timeout = milliseconds(60)});
  int64_t taken = 0;
  try {
    for ([[maybe_unused]] auto& batch : feed.epoch()) ++taken;
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_NE(std::string(error.what()).find("index 9 "), std::string::npos) << error.what();
  }
  EXPECT_EQ(taken, 2);
  EXPECT_EQ(feed.failure()->index, 9u);
  EXPECT_EQ(feed.stats().timeouts, 1u);
  EXPECT_EQ(flat(take_epoch(feed)), iota(16));  // another thread replaces the stuck one
  while (feed.stats().restarts == 0) std::this_thread::yield();
  EXPECT_EQ(feed.stats().restarts, 1u);
  gate->open();
}

TEST(LoaderTimeouts, a_stuck_sample_is_skipped_or_replaced_and_stays_lost) {
  for (OnError policy : {OnError::kSkip, OnError::kReplace}) {
    auto gate = std::make_shared<Gate>();
    Loader feed(Made(16,
                     [gate](uint64_t index, SampleContext& context) {
                       if (index == 5 && context.epoch() == 0) gate->wait();
                       return item(index);
                     }),
                {.batch_size = 8, .workers = 2, .on_error = policy, .timeout = milliseconds(60)});
    auto range = feed.epoch();
    auto it = range.begin();
    Example batch = *it;
    std::vector<int64_t> got = numbers(batch);
    if (policy == OnError::kSkip) {
      EXPECT_EQ(got, (std::vector<int64_t>{0, 1, 2, 3, 4, 6, 7}));
    } else {
      EXPECT_EQ(got.size(), 8u);
      EXPECT_NE(got[5], 5);
    }
    // The stuck thread continues: it must not write into delivered batches.
    gate->open();
    for (++it; it != range.end(); ++it) {
    }
    feed.close();
    EXPECT_EQ(numbers(batch), got);
    EXPECT_EQ(feed.stats().losses.size(), 1u);
    EXPECT_EQ(feed.stats().losses[0].index, 5u);
  }
}

TEST(LoaderTimeouts, a_withdrawn_ticket_that_is_stuck_does_not_stop_the_feed) {
  auto gate = std::make_shared<Gate>();
  Loader feed(Made(64,
                   [gate](uint64_t index, SampleContext& context) {
                     if (index == 3 && context.epoch() == 0) gate->wait();
                     return item(index);
                   }),
              {.batch_size = 1, .workers = 2, .max_queue_size = 2, .timeout = milliseconds(50)});
  for (auto& batch : feed.epoch()) {
    if (numbers(batch)[0] == 1) break;
  }
  // Many laps of the ring, of which the stuck ticket holds a place until it times out.
  EXPECT_EQ(flat(take_epoch(feed)), iota(64));
  gate->open();
}

// Elements of `numbers` that repeat their number, and a map that hangs once for one of them, and
// then checks whether the element is unchanged.
struct HangingMap {
  explicit HangingMap(float number) : at(number) {}
  Dataset of_stream(int64_t count) {
    auto begin = [count](uint64_t) {
      return [next = int64_t{0}, count]() mutable -> std::optional<Example> {
        if (next == count) return std::nullopt;
        return Example{{"x", testing::filled({4096}, static_cast<float>(next++))}};
      };
    };
    auto look = [this](const Example& element, SampleContext&) {
      const auto x = element.at("x").as_span<const float>();
      if (x[0] == at && !hung.exchange(true)) {
        gate.wait();
        const bool same = std::ranges::all_of(x, [&](float each) { return each == at; });
        seen.store(same ? 1 : -1);
      }
      return item(static_cast<uint64_t>(x[0]));
    };
    return Dataset::generator(begin).map(look);
  }
  const float at;
  Gate gate;
  std::atomic<bool> hung{false};
  std::atomic<int> seen{0};  // 1: unchanged
};

TEST(LoaderTimeouts, a_thread_that_comes_back_still_has_what_it_was_given) {
  for (OnError policy : {OnError::kRaise, OnError::kSkip}) {
    HangingMap hanging(5);
    Loader feed = hanging.of_stream(64).batch(4).build(
        {.workers = 2, .max_queue_size = 2, .on_error = policy, .timeout = milliseconds(50)});
    if (policy == OnError::kRaise) {
      EXPECT_THROW(take_epoch(feed), Error);
      EXPECT_EQ(feed.failure()->index, 5u);
    }
    // Many laps of the ring, and many times the memory of the elements in flight.
    for (int pass = 0; pass < 10; ++pass) {
      const bool lost = policy == OnError::kSkip && pass == 0;
      EXPECT_EQ(flat(take_epoch(feed)).size(), lost ? 63u : 64u);
    }
    hanging.gate.open();
    while (hanging.seen == 0) std::this_thread::yield();
    EXPECT_EQ(hanging.seen, 1);
    feed.close();
  }
}

// A batch whose memory is still written to is not delivered, under any policy.
TEST(LoaderTimeouts, what_hangs_while_it_writes_into_a_batch_is_an_error) {
  for (OnError policy : {OnError::kRaise, OnError::kSkip}) {
    auto gate = std::make_shared<Gate>();
    auto hung = std::make_shared<std::atomic<bool>>(false);
    auto copy = [gate, hung](std::span<const int64_t> in, std::span<int64_t> out) {
      for (size_t i = 0; i < in.size(); ++i) {
        if (in[i] == 130 && !hung->exchange(true)) gate->wait();
        out[i] = in[i];
      }
    };
    Loader feed = Dataset::range(0, 4000)
                      .map_field<int64_t>("", {}, copy)
                      .batch(100)
                      .build({.workers = 2,
                              .max_queue_size = 2,
                              .on_error = policy,
                              .timeout = milliseconds(50)});
    EXPECT_EQ(numbers(*feed.next(), "").size(), 100u);
    try {
      feed.next();
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    }
    EXPECT_GE(feed.failure()->index, 100u);  // the first of the rows that were made together
    EXPECT_LE(feed.failure()->index, 130u);
    for (int64_t step = 1; step < 40; ++step) {
      EXPECT_EQ(numbers(*feed.next(), "").front(), 100 * step);
    }
    EXPECT_FALSE(feed.next());
    gate->open();
  }
}

TEST(LoaderTimeouts, when_every_thread_is_stuck_it_says_so) {
  auto gate = std::make_shared<Gate>();
  Loader feed(Made(100,
                   [gate](uint64_t index, SampleContext&) {
                     gate->wait();
                     return item(index);
                   }),
              {.batch_size = 1, .workers = 1, .timeout = milliseconds(2)});
  bool ended = false;
  for (int n = 0; n < 50 && !ended; ++n) {
    try {
      feed.next();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTimeout);
      ended = std::string(error.what()).find("11 by now, are stuck") != std::string::npos;
    }
  }
  EXPECT_TRUE(ended);
  EXPECT_TRUE(feed.closed());
  gate->open();
}

}  // namespace
}  // namespace penstock
