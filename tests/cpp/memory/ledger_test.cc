#include "penstock/memory/ledger.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "child.h"
#include "penstock/base/os.h"
#include "penstock/memory/allocator.h"
#include "regions.h"

namespace penstock {
namespace {

using testing::kMiB;

struct Place {  // as in a shared board: entries are not adjacent
  LedgerEntry entry{};
  std::array<char, 100> other{};
};

using Places = std::array<Place, 2>;

class LedgerTest : public ::testing::Test {
 protected:
  static std::shared_ptr<Places> shared_places() {
    auto* places = static_cast<Places*>(os::reserve_mapping(-1, sizeof(Places), true));
    return {places, [](Places* at) { os::unmap(at, sizeof(Places)); }};
  }
  std::unique_ptr<Allocator> arena(uint32_t mine) {
    Allocator::Options options;
    options.ledger = {&places->front().entry,     sizeof(Place), 2, mine,
                      counted_as(mine, ++arenas), &most_live};
    return std::make_unique<Allocator>(testing::region_of(256 * kMiB), options);
  }
  static std::vector<void*> take(Allocator& arena, int count) {
    std::vector<void*> blocks;
    for (int i = 0; i < count; ++i) blocks.push_back(arena.allocate(4 * kMiB));
    return blocks;
  }
  static void give(Allocator& arena, const std::vector<void*>& blocks) {
    for (void* block : blocks) arena.release(block);
  }
  BlocksInUse counted_as(uint32_t place, uint32_t number) const {
    return {std::shared_ptr<std::atomic<uint64_t>>(places, &(*places)[place].entry.in_use), number};
  }
  uint64_t in_use(uint32_t place) const {
    return BlocksInUse::bytes((*places)[place].entry.in_use.load());
  }
  static std::vector<Lease> lend(Allocator& arena, int count) {
    std::vector<Lease> leases;
    for (void* block : take(arena, count)) {
      leases.push_back(arena.lease(block));
      arena.release(block);
    }
    return leases;
  }

  std::shared_ptr<Places> places = shared_places();
  uint32_t arenas = 0;
  std::atomic<uint64_t> most_live{0};
  std::unique_ptr<Allocator> a = arena(0), b = arena(1);
};

TEST_F(LedgerTest, one_arena_keeps_what_it_needed_once) {
  give(*a, take(*a, 6));
  uint64_t faulted = a->stats().faulted_bytes;
  for (int i = 0; i < 10; ++i) give(*a, take(*a, 6));
  EXPECT_EQ(a->stats().faulted_bytes, faulted);
}

TEST_F(LedgerTest, arenas_that_take_turns_hold_no_more_than_was_ever_in_use_at_once) {
  for (int i = 0; i < 5; ++i) {
    give(*a, take(*a, 6));
    auto blocks = take(*b, 6);
    a->collect();  // as a worker does before it sleeps
    give(*b, blocks);
    b->collect();
    EXPECT_LE(a->stats().committed_bytes + b->stats().committed_bytes, (24 + 3) * kMiB);
  }
  EXPECT_EQ(a->stats().failures + b->stats().failures, 0u);
}

TEST_F(LedgerTest, what_is_in_use_is_never_given_back) {
  auto mine = take(*a, 6);
  for (void* block : mine) *static_cast<int*>(block) = 11;
  auto others = take(*b, 6);
  give(*b, others);
  a->collect();
  b->collect();
  for (void* block : mine) EXPECT_EQ(*static_cast<int*>(block), 11);
  EXPECT_GE(a->stats().committed_bytes, 24 * kMiB);
  EXPECT_GE(b->stats().committed_bytes, 24 * kMiB) << "both were in use at once";
}

TEST_F(LedgerTest, what_leases_returned_is_not_in_use_though_nobody_collected_it) {
  std::vector<Lease> leases = lend(*a, 6);
  leases.clear();             // by the consumer, while the worker of `a` is busy or asleep
  auto blocks = take(*b, 6);  // at most six were in use at a time
  EXPECT_EQ(most_live.load(), 24 * kMiB);
  give(*b, blocks);
  a->collect();
  b->collect();
  EXPECT_LE(a->stats().committed_bytes + b->stats().committed_bytes, (24 + 3) * kMiB);
}

TEST_F(LedgerTest, the_next_arena_in_a_place_starts_anew) {
  auto lost = take(*a, 6);  // its process is killed
  a = arena(0);
  auto mine = take(*a, 1);
  EXPECT_EQ(in_use(0), 4 * kMiB);
  EXPECT_EQ(most_live.load(), 24 * kMiB);
}

TEST_F(LedgerTest, leases_of_the_arena_before_change_nothing) {
  std::vector<Lease> leases = lend(*a, 6);
  a = arena(0);  // its process was killed, and its leases are still out
  auto mine = take(*a, 3);
  leases.clear();
  EXPECT_EQ(in_use(0), 12 * kMiB);
}

TEST_F(LedgerTest, the_last_lease_takes_its_block_off_in_any_process) {
  void* block = a->allocate(4 * kMiB);
  Ref first = a->share(block).value(), second = a->share(block).value();
  a->release(block);
  auto return_in_child = [&](const Ref& ref) {
    return testing::holds_in_child([&] {
      auto region = Region::open(a->region()->fd());
      region->set_in_use_counter(counted_as(0, 1));
      region->return_lease(ref);
      return true;
    });
  };
  ASSERT_TRUE(return_in_child(first));
  EXPECT_EQ(in_use(0), 4 * kMiB);
  ASSERT_TRUE(return_in_child(second));
  EXPECT_EQ(in_use(0), 0u);
  ASSERT_TRUE(return_in_child(second));  // returned twice: ignored
  a->collect();
  EXPECT_EQ(in_use(0), 0u);
  EXPECT_EQ(a->stats().live_bytes, 0u);
}

TEST_F(LedgerTest, a_block_counts_for_as_long_as_it_was_resized_to) {
  void* space = a->allocate(12 * kMiB);
  a->lease(space).reset();  // the page for headers is allocated after it
  a->release(space);
  void* block = a->allocate(4 * kMiB);
  ASSERT_EQ(a->resize(block, 6 * kMiB), block);
  EXPECT_EQ(in_use(0), 6 * kMiB);
  Lease lease = a->lease(block);
  ASSERT_EQ(a->resize(block, 8 * kMiB), block);
  EXPECT_EQ(in_use(0), 8 * kMiB);
  ASSERT_EQ(a->resize(block, 2 * kMiB), block);  // the lease covers all of it
  EXPECT_EQ(in_use(0), 8 * kMiB);
  a->release(block);
  lease.reset();
  EXPECT_EQ(in_use(0), 0u);
}

TEST_F(LedgerTest, small_blocks_count_as_their_arena_knows_them) {
  void* small = a->allocate(100'000);
  void* large = a->allocate(4 * kMiB);
  EXPECT_EQ(in_use(0), 4 * kMiB);
  EXPECT_GE((*places)[0].entry.small.load(), 100'000u);
  a->release(small);
  a->release(large);
  EXPECT_EQ(in_use(0), 0u);
  EXPECT_EQ((*places)[0].entry.small.load(), 0u);
}

TEST_F(LedgerTest, what_is_expected_is_kept_although_less_was_in_use) {
  atomic_max(most_live, 48 * kMiB);
  give(*a, take(*a, 6));
  give(*b, take(*b, 6));
  a->collect();
  EXPECT_GE(a->stats().committed_bytes, 24 * kMiB);
  EXPECT_GE(b->stats().committed_bytes, 24 * kMiB);
}

}  // namespace
}  // namespace penstock
