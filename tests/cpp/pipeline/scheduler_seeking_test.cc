// The scheduler: seeking, and tickets that were taken back while a worker ran them.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/cpp/pipeline/scheduler_world.h"

namespace penstock {
namespace {

using testing::kRowBytes;
using testing::World;

TEST(Scheduler, seeking_goes_anywhere_and_makes_nothing_twice) {
  World world({.length = 10, .queue = 3});
  world.scheduler().begin_epoch();
  for (Position to : {Position{0, 0, 7}, {3, 0, 0}, {1, 4, 2}, {0, 0, 0}, {0, 0, 9}}) {
    world.work_all();
    world.scheduler().seek(to);
    EXPECT_EQ(world.scheduler().position(), to);
    EXPECT_EQ(world.take(to.epoch), to);
  }
}

TEST(Scheduler, what_was_delivered_ahead_is_left_out) {
  for (uint32_t queue : {1, 3, 10}) {
    for (bool pause : {false, true}) {
      World world({.length = 8, .queue = queue, .workers = 0, .ordered = false, .pause = pause});
      world.scheduler().seek({2, 0, 1}, {3, 4, 6, 7});
      world.scheduler().begin_epoch();
      std::vector<uint64_t> steps;
      while (auto at = world.take(2)) steps.push_back(at->step);
      EXPECT_EQ(steps, (std::vector<uint64_t>{1, 2, 5}));
      EXPECT_EQ(world.scheduler().position(), (Position{3, 0, 0}));
      EXPECT_EQ(world.in_flight() == 0, pause);
      world.scheduler().begin_epoch();
      EXPECT_EQ(world.take(3), (Position{3, 0, 0}));
    }
  }
}

TEST(Scheduler, a_claimed_granule_keeps_its_memory_until_its_worker_is_done) {
  World world({.length = 40, .batch = 4, .queue = 2}, nullptr, true);
  world.scheduler().begin_epoch();
  for (int i = 0; i < 4; ++i) world.take(0);  // from now on entries have memory
  world.lease().reset();
  world.scheduler().poll(0);
  auto zombie = world.claim();
  ASSERT_TRUE(zombie);
  Slot slot = world.slot_of(*zombie);
  std::byte* space = slot.memory(std::as_bytes(std::span("r", 1)), 4 * kRowBytes);
  ASSERT_NE(space, nullptr);
  world.scheduler().seek({0, 0, 0});
  EXPECT_FALSE(world.scheduler().settle(0));
  for (int lap = 0; lap < 3; ++lap) {  // other tickets use the ring
    for (uint64_t step = 0; step < 3; ++step) {
      world.scheduler().poll(0);
      if (!world.scheduler().next_open()) break;
      EXPECT_EQ(world.take(0)->step, step);
      ASSERT_NE(world.lease().data(), space);
      for (size_t at = 0; at < world.lease().bytes(); at += kRowBytes) {
        EXPECT_EQ(world.lease().data()[at], std::byte(step));
      }
    }
    world.scheduler().seek({0, 0, 0});
  }
  EXPECT_EQ(world.arena().bytes_of(space), 4 * kRowBytes);
  {
    Slot::Write ours(slot);
    EXPECT_TRUE(static_cast<bool>(ours));
    std::memset(space, 0xee, 4 * kRowBytes);
  }
  EXPECT_TRUE(slot.finish_inline(ResultKind::kRows, 0, {}));
  int before = world.discarded();
  EXPECT_TRUE(world.scheduler().settle(-1));
  EXPECT_EQ(world.discarded(), before + 1);
  EXPECT_EQ(world.arena().bytes_of(space), 0u);
}

TEST(Scheduler, withdrawn_work_blocks_the_ring_only_until_it_is_done) {
  World world({.length = 100, .queue = 1, .workers = 1});
  world.scheduler().begin_epoch();
  auto zombie = world.claim();
  world.scheduler().seek({0, 0, 5});
  uint64_t taken = 0;
  while (world.scheduler().poll(0) == Scheduler::Poll::kBatch || world.scheduler().next_open()) {
    world.take(0);
    ++taken;
  }
  EXPECT_LT(taken, world.ring().entries());
  EXPECT_EQ(world.in_flight(), 0u);
  std::thread worker([&] { world.finish(*zombie); });
  world.scheduler().wait(-1);  // for the place
  worker.join();
  EXPECT_EQ(world.take(0)->step, 5 + taken);
}

TEST(Scheduler, settling_waits_for_every_claimed_granule) {
  for (int round = 0; round < 50; ++round) {
    World world({.length = 40, .batch = 3, .queue = 2, .workers = 2});
    world.scheduler().begin_epoch();
    std::vector<TicketRing::Claim> claims;
    for (int i = 0; i < 5; ++i) claims.push_back(*world.claim(uint32_t(i % 3)));
    world.scheduler().seek({1, 0, 0});
    std::atomic<int> finished = 0;
    std::thread worker([&] {
      for (auto& claim : claims) {
        ++finished;
        world.finish(claim);
      }
    });
    while (!world.scheduler().settle(-1)) {
    }
    EXPECT_EQ(finished, 5);
    worker.join();
  }
}

}  // namespace
}  // namespace penstock
