// Allocator::Options::wait_for_returns: when the allocator waits for a block instead of growing.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/memory/allocator.h"
#include "tests/cpp/memory/regions.h"

namespace penstock {
namespace {

using testing::kMiB;
using testing::region_of;

// A thread returns the leases of two blocks in turn, each shortly after the next request.
TEST(AllocatorPatience, waits_for_what_comes_back_rather_than_grow) {
  constexpr size_t kBytes = 64 * kMiB;
  uint64_t least_faulted = UINT64_MAX;
  for (int attempt = 0; attempt < 20 && least_faulted > 2 * kBytes + kMiB; ++attempt) {
    Allocator::Options options;
    options.wait_for_returns = true;
    Allocator allocator(region_of(1024 * kMiB), options);
    auto leased = [&] {
      void* block = allocator.allocate(kBytes);
      EXPECT_NE(block, nullptr);
      Lease lease = allocator.lease(block);
      allocator.release(block);
      return lease;
    };
    Lease first = leased();
    Lease second = leased();
    EXPECT_EQ(allocator.stats().waits, 0u) << "nothing came back yet";
    first = {};
    first = leased();
    EXPECT_EQ(allocator.stats().waits, 0u) << "there was one";
    std::thread consumer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      second = {};
    });
    Lease third = leased();
    consumer.join();
    least_faulted = std::min(least_faulted, allocator.stats().faulted_bytes);
  }
  EXPECT_LE(least_faulted, 2 * kBytes + kMiB);
}

// If the consumer is slower than the worker, the allocator could wait for each block; but the queue
// must be filled.
TEST(AllocatorPatience, grows_once_it_has_waited_for_long_enough) {
  constexpr size_t kBytes = 64 * kMiB, kQueue = 6;
  Allocator::Options options;
  options.wait_for_returns = true;
  Allocator allocator(region_of(1024 * kMiB), options);
  const uint64_t begun = now_ns();
  allocator.release(allocator.allocate(kBytes));
  const std::chrono::nanoseconds third((now_ns() - begun) / 3);  // of the time to fault pages in
  std::mutex mutex;
  std::deque<Lease> queue;
  bool over = false;
  std::thread consumer([&] {
    for (Lease held;;) {
      std::this_thread::sleep_for(third);
      std::lock_guard lock(mutex);
      if (over) return;
      if (queue.empty()) continue;
      held = std::move(queue.front());
      queue.pop_front();
    }
  });
  auto full = [&] {
    std::lock_guard lock(mutex);
    return queue.size() >= kQueue;
  };
  for (int i = 0; i < 500 && !full(); ++i) {
    void* block = allocator.allocate(kBytes);
    EXPECT_NE(block, nullptr);
    if (block == nullptr) break;
    Lease lease = allocator.lease(block);
    allocator.release(block);
    std::lock_guard lock(mutex);
    queue.push_back(std::move(lease));
  }
  EXPECT_TRUE(full());
  {
    std::lock_guard lock(mutex);
    over = true;
  }
  consumer.join();
}

TEST(AllocatorPatience, waits_once_for_what_comes_back_no_more) {
  Allocator::Options options;
  options.wait_for_returns = true;
  Allocator allocator(region_of(1024 * kMiB), options);
  std::vector<Lease> leases;
  auto more = [&] {
    void* block = allocator.allocate(16 * kMiB);
    ASSERT_NE(block, nullptr);
    leases.push_back(allocator.lease(block));
    allocator.release(block);
  };
  more();
  leases.clear();
  for (int i = 0; i < 10; ++i) more();
  EXPECT_LE(allocator.stats().waits, 1u);  // 0 if this thread was descheduled for longer
  EXPECT_EQ(leases.size(), 10u);
}

}  // namespace
}  // namespace penstock
