// A C++ Loader in a forked child, which has none of its threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "datasets.h"
#include "numbers.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock {
namespace {

using testing::Gate;
using testing::Made;
using testing::NumberedSamples;

bool refuses(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == Code::kInvalidArgument;
  }
  return false;
}

#ifndef __SANITIZE_THREAD__  // which forks no process of several threads
TEST(LoaderFork, a_child_does_not_iterate_and_leaves_its_scope) {
  for (uint32_t workers : {0, 2}) {
    std::vector<std::unique_ptr<Loader>> feeds;
    const LoaderOptions options{.workers = workers};
    feeds.push_back(std::make_unique<Loader>(NumberedSamples(100), options));
    feeds.push_back(std::make_unique<Loader>(
        NumberedSamples(100),
        LoaderOptions{.workers = workers, .timeout = std::chrono::minutes(1)}));
    feeds.push_back(std::make_unique<Loader>(Dataset::range(100).build(options)));
    feeds.push_back(std::make_unique<Loader>(Dataset::range(100).filter(test::odd).build(options)));
    for (auto& feed : feeds) {
      const std::optional<Example> batch = feed->next();
      auto leave = [&] {
        alarm(60);
        const bool refused = refuses([&] { feed->next(); }) && refuses([&] { feed->epoch(); }) &&
                             refuses([&] { feed->restore(feed->state()); });
        feed.reset();
        _exit(refused && (*batch)[0].second.nbytes() == 8 ? 0 : 1);
      };
      EXPECT_EXIT(leave(), ::testing::ExitedWithCode(0), "");
      EXPECT_TRUE(feed->next());
    }
  }
}

TEST(LoaderFork, a_child_is_refused_while_a_thread_of_the_parent_waits_for_a_batch) {
  for (uint32_t workers : {0, 1}) {
    Gate gate;
    auto wait = [&](const Example& element, SampleContext&) {
      gate.wait();
      return element;
    };
    auto wait_for = [&](uint64_t index, SampleContext&) {
      gate.wait();
      return testing::item(index);
    };
    const LoaderOptions options{.workers = workers, .max_queue_size = 1};
    std::vector<std::unique_ptr<Loader>> feeds;
    feeds.push_back(std::make_unique<Loader>(Made(3, wait_for), options));
    feeds.push_back(std::make_unique<Loader>(Dataset::range(3).map(wait).build(options)));
    std::vector<std::thread> threads;
    for (auto& feed : feeds) {
      const LoaderState state = feed->state();
      threads.emplace_back([&] { EXPECT_TRUE(feed->next()); });
      gate.until_waiting(static_cast<int>(threads.size()));
      auto leave = [&] {
        alarm(20);
        const bool refused = refuses([&] { feed->next(); }) && refuses([&] { feed->epoch(); }) &&
                             refuses([&] { feed->steps(1); }) &&
                             refuses([&] { feed->restore(state); }) &&
                             refuses([&] { (void)feed->state(); });
        _exit(refused ? 0 : 1);
      };
      EXPECT_EXIT(leave(), ::testing::ExitedWithCode(0), "");
    }
    gate.open();
    for (std::thread& thread : threads) thread.join();
  }
}
#endif

}  // namespace
}  // namespace penstock
