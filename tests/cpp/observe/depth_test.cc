#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "penstock/observe/counters.h"

namespace penstock {
namespace {

TEST(DepthHistory, covers_a_run_of_any_length_in_bounded_memory) {
  DepthHistory history;
  constexpr uint64_t kStep = 1'000'000;
  constexpr uint64_t kSamples = 1'000'000;
  for (uint64_t i = 1; i <= kSamples; ++i) {
    history.add(i * kStep, static_cast<uint32_t>(i % 11));
  }
  const auto samples = history.read();
  EXPECT_LE(samples.size(), DepthHistory::kCapacity);
  EXPECT_GE(samples.size(), DepthHistory::kCapacity / 4);
  EXPECT_EQ(samples.front().at_ns, kStep);
  EXPECT_GT(samples.back().at_ns, kSamples * kStep / 100 * 99);
  for (size_t i = 1; i < samples.size(); ++i) {
    EXPECT_GT(samples[i].at_ns, samples[i - 1].at_ns);
    EXPECT_EQ(samples[i].depth, samples[i].at_ns / kStep % 11);
  }
}

TEST(DepthHistory, may_be_read_while_it_is_written) {
  DepthHistory history;
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    for (uint64_t i = 1; !stop.load(std::memory_order_relaxed); ++i) {
      history.add(i * 200'000, 5);
    }
  });
  size_t seen = 0;
  while (seen < 10'000) {
    for (const DepthSample& sample : history.read()) {
      ASSERT_EQ(sample.depth, 5U);
      ++seen;
    }
  }
  stop.store(true);
  thread.join();
}

}  // namespace
}  // namespace penstock
