#include "penstock/train/server/gradient_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/train/server/shard_service.h"
#include "tests/cpp/train/refusals.h"
#include "tests/cpp/train/serving.h"

namespace penstock::train {
namespace {

using testing::kTcp;
using testing::message_of;
using testing::OneShard;

constexpr size_t kFloats = 1000;

TEST(GradientPool, buffers_that_are_given_back_are_used_again_and_few_are_kept) {
  GradientPool pool(0, 0);
  const float* first = nullptr;
  {
    const GradientPool::Buffer buffer(pool, kFloats);
    EXPECT_GE(buffer.floats().size(), kFloats);
    first = buffer.floats().data();
  }
  EXPECT_EQ(GradientPool::Buffer(pool, kFloats / 2).floats().data(), first);
  std::vector<std::unique_ptr<GradientPool::Buffer>> many;
  for (int i = 0; i < 20; ++i) {
    many.push_back(std::make_unique<GradientPool::Buffer>(pool, kFloats));
  }
  EXPECT_EQ(pool.in_use(), 20u);
  many.clear();
  EXPECT_EQ(pool.in_use(), 0u);
  EXPECT_LE(pool.idle_floats(), 4 * kFloats);
}

TEST(GradientPool, at_the_limit_a_push_waits_for_another_ones_end) {
  GradientPool pool(1, 60);
  std::optional<GradientPool::Buffer> first;
  first.emplace(pool, kFloats);
  std::atomic<bool> taken{false};
  std::thread other([&] {
    const GradientPool::Buffer buffer(pool, kFloats);
    taken = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(taken);
  first.reset();
  other.join();
  EXPECT_TRUE(taken);
}

TEST(GradientPool, a_buffer_that_does_not_come_back_stops_nobody) {
  GradientPool pool(1, 0.02);
  const GradientPool::Buffer stalled(pool, kFloats);
  const GradientPool::Buffer other(pool, kFloats);  // returns: that is the test
  EXPECT_EQ(pool.in_use(), 2u);
}

TEST(ShardService, connections_above_the_limit_are_refused_until_one_ends) {
  OneShard one;
  const Layout layout{{"w", {OneShard::kFloats}}};
  ShardService service(std::move(one.shard), {layout, {0, OneShard::kFloats}, 1}, {}, {kTcp}, "",
                       false, 2);
  const std::vector<std::string> addresses = service.addresses();
  auto first = std::make_unique<ParameterClient>(addresses, ClientOptions{});
  ParameterClient second(addresses, {});
  const std::string why =
      message_of(Code::kTimeout, [&] { ParameterClient third(addresses, {.retry_s = 0.1}); });
  EXPECT_NE(why.find("2 connections, the maximum"), std::string::npos) << why;
  first.reset();
  ParameterClient third(addresses, {.retry_s = 60});
  const Slab gradient = Slab::make(layout);
  std::ranges::fill(gradient.values(), -1.0f);
  EXPECT_TRUE(third.push(gradient).applied);
  EXPECT_TRUE(second.push(gradient).applied);
  EXPECT_TRUE(one.all_weights_are(2));
}

}  // namespace
}  // namespace penstock::train
