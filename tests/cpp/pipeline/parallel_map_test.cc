// Costly parts before stages of streams: made by all workers, as if the stream reader made them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "ops.h"
#include "parallel_map_chains.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock::test {
namespace {

// Each case has a costly part before a stage of a stream.
std::vector<Case> cases() {
  const Dataset numbers = Dataset::range(0, 120).shuffle({.seed = 4});
  const Dataset made = numbers.map(drawn(3));
  const Dataset filtered = numbers.filter(odd);
  const Dataset few = Dataset::range(0, 9);
  return {
      {"filter", made.filter(odd).batch(7)},
      {"known", numbers.map(costly_and_known([](int64_t n, const Keys&, uint32_t) { return -n; }))
                    .filter(odd)
                    .batch(7)},
      {"elements", made.filter(odd)},
      {"shuffle", made.shuffle({.seed = 2, .buffer = 20}).batch(7)},
      {"unbatch", numbers.batch(4).map(scaled).unbatch().batch(9)},
      {"zip",
       Dataset::zip({made.filter(odd), filtered.map(drawn(5)).filter(not_of_three)}, {"a", "b"})
           .batch(5)},
      {"concatenate", Dataset::concatenate({made.filter(odd), made.filter(odd)}).batch(5)},
      {"flat_map", few.map(drawn(1))
                       .flat_map([](const Example& e) {
                         const int64_t n = number_of(e) % 7;
                         return Dataset::range(n, 2 * n).map(drawn(1));
                       })
                       .batch(4)},
      {"interleave", few.map(drawn(1))
                         .interleave(
                             [](const Example& e) {
                               return Dataset::range(0, number_of(e) % 5).map(drawn(1)).filter(odd);
                             },
                             {.cycle = 3, .block = 2})
                         .batch(4)},
      {"interleave of inputs",
       Dataset::interleave({made.filter(odd), made, filtered.map(drawn(5)), few}, 2, 3).batch(5)},
      {"window", made.shuffle({.seed = 2, .buffer = 20})
                     .window({.size = 3, .shift = 2, .drop_last = true})
                     .batch(4)},
      {"tail", filtered.map(drawn(2)).shuffle({.seed = 3, .buffer = 9}).batch(6)},
      {"stacked tail", filtered.batch(3).map(scaled).unbatch().batch(4)},
      {"whole stacked tail", filtered.batch(3, {.drop_last = true}).map(scaled).unbatch().batch(4)},
      {"two of them",
       made.filter(odd).map(drawn(2)).shuffle({.seed = 3, .buffer = 9}).map(drawn(1)).batch(6)},
      {"repeat", made.filter(odd).repeat(2).take(95).batch(6)},
      {"take", made.filter(odd).take(11).batch(2)},
      {"skip", made.filter(odd).skip(31).batch(2)},
      {"rounds", made.filter(odd).batch(9).repeat(2)},
      {"nothing", Dataset::range(0, 0).map(drawn(1)).filter(odd).batch(3)},
  };
}

INSTANTIATE_TEST_SUITE_P(, ParallelMapWorkers, ::testing::Values(1, 4));

TEST_P(ParallelMapWorkers, elements_and_order_are_those_of_a_stream_reader_alone) {
  for (const auto& [name, dataset] : cases()) {
    SCOPED_TRACE(name);
    Loader alone = dataset.build({.workers = 0}), feed = dataset.build(options());
    LoaderOptions small = options();
    small.max_bytes = 1;
    Loader poor = dataset.build(small);
    for (int pass = 0; pass < 3; ++pass) {
      const auto expected = texts_of(alone);
      ASSERT_EQ(texts_of(feed), expected);
      ASSERT_EQ(texts_of(poor), expected);
      ASSERT_EQ(expected.empty(), std::string(name) == "nothing");
    }
  }
}

TEST_P(ParallelMapWorkers, a_state_restores_at_every_element_with_and_without_workers) {
  for (const auto& [name, dataset] : cases()) {
    SCOPED_TRACE(name);
    Loader alone = dataset.build({.workers = 0});
    const auto whole = texts_of(alone), second = texts_of(alone);
    Loader feed = dataset.build(options());
    for (size_t i = 0; i < whole.size(); ++i) {
      const LoaderState state = LoaderState::from_json(feed.state().to_json());
      Loader other = dataset.build({.workers = i % 3});
      other.restore(state);
      for (size_t j = i; j < std::min(i + 3, whole.size()); ++j) {
        auto next = other.next();
        ASSERT_TRUE(next) << "at " << i << ": " << state.to_json();
        ASSERT_EQ(text_of(*next), whole[j]) << "at " << i << ": " << state.to_json();
      }
      if (i % 16 == 0) {
        other.restore(state);
        ASSERT_EQ(texts_of(other).size(), whole.size() - i) << state.to_json();
        ASSERT_EQ(texts_of(other), second) << "the next pass";
      }
      ASSERT_EQ(text_of(*feed.next()), whole[i]);
    }
  }
}

// ---- who makes them -----------------------------------------------------------------------------

// Blocks threads until a given number of them has arrived.
class Meeting {
 public:
  explicit Meeting(size_t wanted) : wanted_(wanted) {}
  void come() {
    std::unique_lock lock(mutex_);
    threads_.insert(std::this_thread::get_id());
    all_.notify_all();
    met_ = all_.wait_for(lock, std::chrono::seconds(20), [&] {
      return threads_.size() >= wanted_;
    }) && met_;
  }
  bool met() {
    std::lock_guard lock(mutex_);
    return met_;
  }
  std::set<std::thread::id> threads() {
    std::lock_guard lock(mutex_);
    return threads_;
  }

 private:
  size_t wanted_;
  std::mutex mutex_;
  std::condition_variable all_;
  bool met_ = true;
  std::set<std::thread::id> threads_;
};

TEST(ParallelMap, all_workers_work_in_front_of_a_filter_and_behind_it) {
  auto meeting = [](Meeting& at) {
    return costly([&at](int64_t n, const Keys&, uint32_t) {
      at.come();
      return n;
    });
  };
  Meeting front(4), tail(4), behind(1);
  Dataset dataset = Dataset::range(0, 400)
                        .map(meeting(front))
                        .filter(odd)
                        .map(meeting(tail))
                        .shuffle({.seed = 1, .buffer = 4})
                        .map(meeting(behind))
                        .batch(4);
  Loader feed = dataset.build({.workers = 4});
  EXPECT_EQ(texts_of(feed).size(), 50u);
  EXPECT_TRUE(front.met());
  EXPECT_TRUE(tail.met());
  EXPECT_EQ(front.threads().size(), 4u);
  EXPECT_EQ(front.threads(), tail.threads()) << "the same workers";
  for (std::thread::id thread : behind.threads()) EXPECT_TRUE(front.threads().contains(thread));
}

TEST(ParallelMap, there_may_be_more_of_them_than_a_ring_has_lanes) {
  Dataset dataset = Dataset::range(0, 300);
  for (int i = 0; i < 12; ++i) dataset = dataset.map(drawn(1)).filter(not_of_three);
  Loader alone = dataset.batch(3).build({.workers = 0});
  Loader feed = dataset.batch(3).build({.workers = 3});
  const auto expected = texts_of(alone);
  EXPECT_FALSE(expected.empty());
  EXPECT_EQ(texts_of(feed), expected);
}

// ---- ends ---------------------------------------------------------------------------------------

TEST_P(ParallelMapWorkers, closing_in_the_middle_ends_both_parallel_maps) {
  auto slow = [](const Example& element, SampleContext&) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    return element;
  };
  Dataset dataset =
      Dataset::range(0, 1'000'000).map(slow).filter(odd).map(slow).filter(odd).batch(3);
  for (int round = 0; round < 4; ++round) {
    Loader feed = dataset.build(options());
    auto held = feed.next();
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
      feed.close();
    });
    EXPECT_THROW(
        {
          for (;;) (void)feed.next();
        },
        Error);
    closer.join();
    EXPECT_EQ(text_of(*held), "[3 ]1 3 5 ");
  }
  Loader unasked = dataset.build(options());
  unasked.close();
}

TEST_P(ParallelMapWorkers, a_pass_that_was_left_is_followed_by_the_next) {
  Dataset dataset = Dataset::range(0, 300).shuffle({.seed = 4}).map(drawn(1)).filter(odd).batch(7);
  Loader alone = dataset.build({.workers = 0});
  (void)texts_of(alone);
  const auto second = texts_of(alone);
  for (int taken = 0; taken < 12; ++taken) {
    Loader feed = dataset.build(options());
    int n = 0;
    for (auto& batch : feed.epoch()) {
      (void)batch;
      if (n++ == taken) break;
    }
    ASSERT_EQ(texts_of(feed), second);
  }
}

}  // namespace
}  // namespace penstock::test
