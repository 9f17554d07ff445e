#include "penstock/memory/ledger.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "penstock/memory/allocator.h"
#include "regions.h"

namespace penstock {
namespace {

using testing::kMiB;

struct Place {  // as on a board: the entries do not follow on one another
  LedgerEntry entry{};
  std::array<char, 100> other{};
};

class LedgerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Allocator> arena(uint32_t mine) {
    Allocator::Options options;
    options.ledger = {&places[0].entry, sizeof(Place), 2, mine, &most_live};
    return std::make_unique<Allocator>(Region::create(Region::Kind::kPrivate, 256 * kMiB), options);
  }
  static std::vector<void*> take(Allocator& arena, int count) {
    std::vector<void*> blocks;
    for (int i = 0; i < count; ++i) blocks.push_back(arena.allocate(4 * kMiB));
    return blocks;
  }
  static void give(Allocator& arena, const std::vector<void*>& blocks) {
    for (void* block : blocks) arena.release(block);
  }

  std::array<Place, 2> places{};
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

TEST_F(LedgerTest, the_next_arena_in_a_place_starts_anew) {
  auto lost = take(*a, 6);  // its process is killed
  a = arena(0);
  auto mine = take(*a, 1);
  EXPECT_EQ(places[0].entry.live.load(), 4 * kMiB);
  EXPECT_EQ(most_live.load(), 24 * kMiB);
}

}  // namespace
}  // namespace penstock
