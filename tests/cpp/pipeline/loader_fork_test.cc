// A C++ Loader in a forked child, which has none of its threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <vector>

#include "datasets.h"
#include "numbers.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/dataset.h"

namespace penstock {
namespace {

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
#endif

}  // namespace
}  // namespace penstock
