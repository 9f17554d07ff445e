// The scheduler: the memory of batches is reused, and never too early.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "penstock/base/error.h"
#include "tests/cpp/pipeline/scheduler_world.h"

namespace penstock {
namespace {

using testing::kRowBytes;
using testing::World;

TEST(Scheduler, slots_are_recycled_and_a_short_last_batch_changes_nothing) {
  World world({.length = 42, .batch = 4, .queue = 2}, nullptr, true);
  world.scheduler().begin_epoch();
  std::set<std::byte*> places;
  uint64_t faulted = 0;
  for (uint64_t epoch = 0; epoch < 6; ++epoch) {
    for (uint64_t step = 0; auto at = world.take(epoch); ++step) {
      EXPECT_EQ(at->step, step);
      EXPECT_EQ(world.lease().data()[0], std::byte(step));
      places.insert(world.lease().data());
      world.lease().reset();
    }
    if (epoch == 1) faulted = world.arena().stats().faulted_bytes;
  }
  EXPECT_EQ(world.arena().stats().faulted_bytes, faulted);
  EXPECT_LE(places.size(), 5u);
}

TEST(Scheduler, a_held_batch_is_never_written_again) {
  World world({.length = 20, .batch = 2, .queue = 2}, nullptr, true);
  world.scheduler().begin_epoch();
  std::vector<Lease> held;
  while (world.take(0)) held.push_back(std::move(world.lease()));
  ASSERT_EQ(held.size(), 10u);
  for (size_t step = 0; step < held.size(); ++step) {
    for (size_t at = 0; at < 2 * kRowBytes; at += 999) {
      EXPECT_EQ(held[step].data()[at], std::byte(step));
    }
  }
}

TEST(Scheduler, a_batch_that_cannot_be_leased_for_want_of_memory_is_an_error) {
  // Only the batch: there is no page for the header of its lease.
  size_t batch = (4 * kRowBytes + 65535) / 65536 * 65536;
  World world({.length = 8, .batch = 4, .queue = 2, .arena_bytes = batch}, nullptr, true);
  world.scheduler().begin_epoch();
  world.work(0);
  ASSERT_EQ(world.scheduler().poll(0), Scheduler::Poll::kBatch);
  for (uint32_t g = 0; g < 4; ++g) {
    ASSERT_EQ(world.ring().task_at(0, g).kind, ResultKind::kRows);
    world.ring().task_at(0, g).kind = ResultKind::kNone;  // taken
  }
  EXPECT_THROW(world.scheduler().take_rows(), Error);
  EXPECT_EQ(world.scheduler().position(), (Position{0, 0, 0}));
  EXPECT_EQ(world.in_flight(), 0u);
}

TEST(Scheduler, memory_that_an_abandoned_thread_may_write_to_is_not_used_again) {
  World world({.length = 40, .batch = 2, .queue = 2}, nullptr, true);
  world.scheduler().begin_epoch();
  world.take(0);
  EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kWait);
  world.work_all();
  EXPECT_EQ(world.scheduler().poll(0), Scheduler::Poll::kBatch);
  world.scheduler().current().tainted.store(1);
  world.take(0);
  std::byte* tainted = world.lease().data();
  world.lease().reset();
  for (int i = 0; i < 12; ++i) {
    world.take(0);
    EXPECT_NE(world.lease().data(), tainted);
    world.lease().reset();
  }
}

TEST(Scheduler, what_nobody_took_is_discarded_once) {
  World world({.length = 20, .queue = 4});
  world.scheduler().begin_epoch();
  world.work_all();
  world.take(0);
  world.ring().close();
  int before = world.discarded();
  world.scheduler().drain();
  EXPECT_EQ(world.discarded(), before + 4);
  world.scheduler().drain();
  EXPECT_EQ(world.discarded(), before + 4);
}

TEST(Scheduler, arenas_of_processes_may_keep_what_may_be_in_flight_and_the_batch_just_given) {
  World world({.length = 40, .batch = 4, .queue = 2, .shared = true});
  world.scheduler().begin_epoch();
  EXPECT_EQ(world.ring().ledger(0, 1).most_live->load(), 0u);
  world.take(0);
  const uint64_t each = world.scheduler().typical_bytes();
  ASSERT_GT(each, 0u);
  EXPECT_EQ(world.ring().ledger(0, 1).most_live->load(), (world.in_flight() + 1) * each);
}

}  // namespace
}  // namespace penstock
