// A C++ Loader that is closed, destroyed or moved at any time.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "datasets.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/pipeline/api/loader.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;
using testing::Gate;
using testing::item;
using testing::kWorkers;
using testing::Made;
using testing::NumberedSamples;
using testing::numbers;

TEST(LoaderClosing, it_may_be_destroyed_at_any_moment) {
  for (uint32_t workers : kWorkers) {
    for (int taken = 0; taken < 12; ++taken) {
      Loader feed(NumberedSamples(1000), {.batch_size = 3, .workers = workers});
      for (auto& batch : feed.steps(uint64_t(taken))) EXPECT_EQ(batch.at("x").dim(1), 3);
    }
  }
}

TEST(LoaderClosing, closing_from_another_thread_ends_a_waiting_consumer) {
  for (uint32_t workers : {1, 3}) {
    auto gate = std::make_shared<Gate>();
    Loader feed(Made(10,
                     [gate](uint64_t index, SampleContext&) {
                       gate->wait();
                       return item(index);
                     }),
                {.batch_size = 1, .workers = workers});
    std::thread closer([&] {
      gate->until_waiting(1);
      std::thread opener([&] {
        // The consumer was released although no worker had progressed.
        while (!feed.closed()) std::this_thread::yield();
        gate->open();
      });
      feed.close();
      opener.join();
    });
    try {
      feed.next();
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kClosed);
    }
    closer.join();
    EXPECT_THROW(feed.next(), Error);
    EXPECT_THROW(feed.epoch(), Error);
  }
}

TEST(LoaderClosing, a_stuck_thread_does_not_keep_a_loader_from_ending) {
  auto gate = std::make_shared<Gate>();
  auto alive = std::make_shared<int>(1);
  {
    Loader feed(Made(10,
                     [gate, alive](uint64_t index, SampleContext&) {
                       if (index == 2) gate->wait();
                       return item(index);
                     }),
                {.batch_size = 1, .workers = 1, .timeout = milliseconds(20)});
    feed.next();
    gate->until_waiting(1);
  }
  EXPECT_GT(alive.use_count(), 1);  // the thread owns everything that it needs
  gate->open();
  while (alive.use_count() > 1) std::this_thread::yield();
}

TEST(LoaderClosing, a_stuck_generator_does_not_keep_a_loader_from_ending) {
  auto gate = std::make_shared<Gate>();
  auto alive = std::make_shared<int>(1);
  {
    auto begin = [gate, alive](uint64_t) {
      return [gate, alive, next = uint64_t{0}]() mutable -> std::optional<Example> {
        if (next == 8) gate->wait();
        return item(next++);
      };
    };
    Loader feed =
        Dataset::generator(begin).batch(2).build({.workers = 1, .timeout = milliseconds(20)});
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(feed.next());
    gate->until_waiting(1);
  }
  EXPECT_GT(alive.use_count(), 1);
  gate->open();
  while (alive.use_count() > 1) std::this_thread::yield();
}

TEST(LoaderClosing, what_a_stuck_thread_reads_stays_when_it_is_not_waited_for) {
  constexpr int64_t kNumbers = 1 << 18;  // a megabyte: free() returns it to the system
  auto gate = std::make_shared<Gate>();
  std::atomic<int> seen{0};
  {
    auto begin = [](uint64_t) {
      return [next = 0]() mutable -> std::optional<Example> {
        if (next++ == 4) return std::nullopt;
        return Example{{"x", testing::filled({kNumbers}, 7)}};
      };
    };
    auto look = [gate, &seen](const Example& element, SampleContext&) {
      gate->wait();
      const auto x = element.at("x").as_span<const float>();
      seen.store(std::ranges::all_of(x, [](float each) { return each == 7; }) ? 1 : -1);
      return item(0);
    };
    Loader feed =
        Dataset::generator(begin).map(look).build({.workers = 1, .timeout = milliseconds(200)});
    std::thread consumer([&] { EXPECT_THROW(feed.next(), Error); });
    gate->until_waiting(1);
    feed.close();
    consumer.join();
  }
  gate->open();
  while (seen == 0) std::this_thread::yield();
  EXPECT_EQ(seen, 1);
}

TEST(LoaderClosing, closing_again_and_from_many_threads_is_fine) {
  Loader feed(NumberedSamples(100), {.batch_size = 3, .workers = 2});
  feed.next();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([&] { feed.close(); });
  for (auto& thread : threads) thread.join();
  feed.close();
  EXPECT_TRUE(feed.closed());
  EXPECT_EQ(feed.stats().delivered, 1u);
}

TEST(LoaderClosing, who_comes_while_another_closes_waits_too) {
  Gate gate;
  std::atomic<bool> over = false;
  Loader feed(Made(10,
                   [&](uint64_t index, SampleContext&) {
                     if (index == 2) gate.wait(), over = true;
                     return item(index);
                   }),
              {.batch_size = 1, .workers = 1});
  feed.next();
  gate.until_waiting(1);
  auto close = [&] {
    feed.close();
    EXPECT_TRUE(over);
  };
  std::thread first(close), second(close);
  std::this_thread::sleep_for(milliseconds(50));
  gate.open();
  first.join();
  second.join();
}

TEST(LoaderClosing, a_worker_may_close_while_another_waits_for_it) {
  Gate gate;
  std::atomic<Loader*> loader = nullptr;
  Loader feed(Made(10,
                   [&](uint64_t index, SampleContext&) {
                     if (index == 2) gate.wait(), loader.load()->close();
                     return item(index);
                   }),
              {.batch_size = 1, .workers = 1});
  loader = &feed;
  feed.next();
  gate.until_waiting(1);
  std::thread closer([&] { feed.close(); });
  std::this_thread::sleep_for(milliseconds(50));
  gate.open();
  closer.join();
  EXPECT_TRUE(feed.closed());
}

TEST(LoaderClosing, who_comes_while_a_worker_closes_waits_for_its_ticket) {
  Gate gate;
  std::atomic<Loader*> loader = nullptr;
  std::atomic<bool> closed = false, over = false;
  Loader feed(Made(10,
                   [&](uint64_t index, SampleContext&) {
                     if (index == 2) {
                       loader.load()->close();
                       closed = true;
                       gate.wait();
                       over = true;
                     }
                     return item(index);
                   }),
              {.batch_size = 1, .workers = 1});
  loader = &feed;
  feed.next();
  gate.until_waiting(1);
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(50));
    gate.open();
  });
  feed.close();
  EXPECT_TRUE(closed);
  EXPECT_TRUE(over);
  opener.join();
}

TEST(LoaderClosing, a_loader_can_be_moved_while_it_is_iterated) {
  Loader feed(NumberedSamples(12), {.batch_size = 3, .workers = 2});
  auto range = feed.epoch();
  auto it = range.begin();
  Loader moved = std::move(feed);
  int batches = 0;
  for (; it != range.end(); ++it) ++batches;
  EXPECT_EQ(batches, 4);
  moved = Loader(NumberedSamples(3), {.batch_size = 3, .workers = 1});
  EXPECT_EQ(moved.size(), 1u);
}

TEST(LoaderClosing, two_loaders_and_a_loader_inside_a_worker) {
  Made nested(6, [](uint64_t index, SampleContext&) {
    Loader inner(NumberedSamples(5), {.batch_size = 5, .workers = 1});
    int64_t sum = 0;
    for (auto& batch : inner.epoch()) {
      for (int64_t i : numbers(batch)) sum += i;
    }
    EXPECT_EQ(sum, 10);
    return item(index);
  });
  Loader a(nested, {.batch_size = 2, .workers = 2});
  Loader b(nested, {.batch_size = 2, .workers = 2});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(numbers(*a.next()), numbers(*b.next()));
}

}  // namespace
}  // namespace penstock
