// The feed: going elsewhere, and what becomes of work that was taken back while somebody was at it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/cpp/pipeline/feed_world.h"

namespace penstock {
namespace {

using testing::kRowBytes;
using testing::World;

TEST(Feed, seeking_goes_anywhere_and_makes_nothing_twice) {
  World world({.length = 10, .queue = 3});
  world.feed().begin_epoch();
  for (Position to : {Position{0, 0, 7}, {3, 0, 0}, {1, 4, 2}, {0, 0, 0}, {0, 0, 9}}) {
    world.work_all();
    world.feed().seek(to);
    EXPECT_EQ(world.feed().position(), to);
    EXPECT_EQ(world.take(to.epoch), to);
  }
}

TEST(Feed, what_was_delivered_ahead_is_left_out) {
  for (uint32_t queue : {1, 3, 10}) {
    for (bool pause : {false, true}) {
      World world({.length = 8, .queue = queue, .workers = 0, .ordered = false, .pause = pause});
      world.feed().seek({2, 0, 1}, {3, 4, 6, 7});
      world.feed().begin_epoch();
      std::vector<uint64_t> steps;
      while (auto at = world.take(2)) steps.push_back(at->step);
      EXPECT_EQ(steps, (std::vector<uint64_t>{1, 2, 5}));
      EXPECT_EQ(world.feed().position(), (Position{3, 0, 0}));
      EXPECT_EQ(world.in_flight() == 0, pause);
      world.feed().begin_epoch();
      EXPECT_EQ(world.take(3), (Position{3, 0, 0}));
    }
  }
}

TEST(Feed, a_claimed_granule_keeps_its_memory_until_its_worker_is_done) {
  World world({.length = 40, .batch = 4, .queue = 2}, nullptr, true);
  world.feed().begin_epoch();
  for (int i = 0; i < 4; ++i) world.take(0);  // from here on posts come with room
  world.lease().reset();
  world.feed().poll(0);
  auto zombie = world.claim();
  ASSERT_TRUE(zombie);
  Slot slot = world.slot_of(*zombie);
  std::byte* room = slot.rows(std::as_bytes(std::span("r", 1)), 4 * kRowBytes);
  ASSERT_NE(room, nullptr);
  world.feed().seek({0, 0, 0});
  EXPECT_FALSE(world.feed().settle(0));
  for (int lap = 0; lap < 3; ++lap) {  // others use the ring around it
    for (uint64_t step = 0; step < 3; ++step) {
      world.feed().poll(0);
      if (!world.feed().next_open()) break;
      EXPECT_EQ(world.take(0)->step, step);
      ASSERT_NE(world.lease().data(), room);
      for (size_t at = 0; at < world.lease().bytes(); at += kRowBytes) {
        EXPECT_EQ(world.lease().data()[at], std::byte(step));
      }
    }
    world.feed().seek({0, 0, 0});
  }
  EXPECT_EQ(world.arena().bytes_of(room), 4 * kRowBytes);
  {
    Slot::Write ours(slot);
    EXPECT_TRUE(static_cast<bool>(ours));
    std::memset(room, 0xee, 4 * kRowBytes);
  }
  EXPECT_TRUE(slot.finish_inline(ResultKind::kRows, 0, {}));
  int before = world.discarded();
  EXPECT_TRUE(world.feed().settle(-1));
  EXPECT_EQ(world.discarded(), before + 1);
  EXPECT_EQ(world.arena().bytes_of(room), 0u);
}

TEST(Feed, withdrawn_work_blocks_the_ring_only_until_it_is_done) {
  World world({.length = 100, .queue = 1, .workers = 1});
  world.feed().begin_epoch();
  auto zombie = world.claim();
  world.feed().seek({0, 0, 5});
  uint64_t taken = 0;
  while (world.feed().poll(0) == Feed::Poll::kBatch || world.feed().next_open()) {
    world.take(0);
    ++taken;
  }
  EXPECT_LT(taken, world.board().posts());
  EXPECT_EQ(world.in_flight(), 0u);
  std::thread worker([&] { world.finish(*zombie); });
  world.feed().wait(-1);  // for the place
  worker.join();
  EXPECT_EQ(world.take(0)->step, 5 + taken);
}

TEST(Feed, settling_waits_for_every_claimed_granule) {
  for (int round = 0; round < 50; ++round) {
    World world({.length = 40, .batch = 3, .queue = 2, .workers = 2});
    world.feed().begin_epoch();
    std::vector<Board::Claim> claims;
    for (int i = 0; i < 5; ++i) claims.push_back(*world.claim(uint32_t(i % 3)));
    world.feed().seek({1, 0, 0});
    std::atomic<int> finished = 0;
    std::thread worker([&] {
      for (auto& claim : claims) {
        ++finished;
        world.finish(claim);
      }
    });
    while (!world.feed().settle(-1)) {
    }
    EXPECT_EQ(finished, 5);
    worker.join();
  }
}

}  // namespace
}  // namespace penstock
