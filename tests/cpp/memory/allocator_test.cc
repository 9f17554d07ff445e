#include "penstock/memory/allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "penstock/base/error.h"
#include "tests/cpp/memory/regions.h"

namespace penstock {
namespace {

using testing::kMiB;
using testing::region_of;

TEST(Allocator, blocks_are_aligned_disjoint_and_known) {
  Allocator allocator(region_of(256 * kMiB));
  std::vector<std::pair<std::byte*, size_t>> blocks;
  for (size_t bytes : {0ul, 1ul, 63ul, 64ul, 65ul, 4096ul, 5000ul, 65536ul, 262144ul, 262145ul,
                       1000000ul, 20000000ul}) {
    for (int i = 0; i < 3; ++i) {
      auto* block = static_cast<std::byte*>(allocator.allocate(bytes));
      ASSERT_NE(block, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 64, 0u);
      std::memset(block, 1, bytes);
      EXPECT_EQ(allocator.bytes_of(block), bytes);
      EXPECT_TRUE(allocator.contains(block));
      EXPECT_EQ(allocator.block_of(block), block);
      if (bytes > 0) {
        EXPECT_EQ(allocator.block_of(block + bytes - 1), block);
      }
      if (bytes > 1) {
        EXPECT_EQ(allocator.bytes_of(block + 1), 0u) << "not its start";
      }
      for (auto [other, size] : blocks) {
        ASSERT_TRUE(block + bytes <= other || other + size <= block);
      }
      blocks.emplace_back(block, bytes);
    }
  }
  int on_the_stack = 0;
  EXPECT_FALSE(allocator.contains(&on_the_stack));
  EXPECT_EQ(allocator.block_of(&on_the_stack), nullptr);
  EXPECT_EQ(allocator.stats().live_blocks, blocks.size());
  for (auto [block, bytes] : blocks) allocator.release(block);
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
  EXPECT_EQ(allocator.stats().live_bytes, 0u);
  EXPECT_EQ(allocator.block_of(blocks[4].first), nullptr);
  EXPECT_EQ(allocator.stats().bad_releases, 0u);
}

TEST(Allocator, recycled_memory_is_never_faulted_anew) {
  Allocator allocator(region_of(1024 * kMiB));
  auto round = [&] {
    std::vector<void*> blocks;
    for (size_t bytes : {100ul, 4096ul, 4096ul, 300000ul, 20000000ul, 10000000ul}) {
      blocks.push_back(allocator.allocate(bytes));
    }
    for (void* block : blocks) allocator.release(block);
  };
  for (int i = 0; i < 3; ++i) round();  // until the places are stable
  uint64_t faulted = allocator.stats().faulted_bytes;
  for (int i = 0; i < 100; ++i) round();
  EXPECT_EQ(allocator.stats().faulted_bytes, faulted);
}

TEST(Allocator, a_block_without_faults_needs_free_memory_that_has_pages) {
  Allocator allocator(region_of(64 * kMiB));
  EXPECT_EQ(allocator.allocate_without_faults(4 * kMiB), nullptr);
  EXPECT_EQ(allocator.stats().faulted_bytes, 0u);
  void* first = allocator.allocate(4 * kMiB);
  EXPECT_EQ(allocator.allocate_without_faults(4 * kMiB), nullptr);
  allocator.release(first);
  const uint64_t faulted = allocator.stats().faulted_bytes;
  EXPECT_EQ(allocator.allocate_without_faults(4 * kMiB), first);
  EXPECT_NE(allocator.allocate_without_faults(100), nullptr);  // small: takes no time
  EXPECT_EQ(allocator.allocate_without_faults(SIZE_MAX), nullptr);
  EXPECT_LE(allocator.stats().faulted_bytes - faulted, kMiB);
}

TEST(Allocator, equal_blocks_use_all_that_is_free_before_it_grows) {
  Allocator allocator(region_of(256 * kMiB));
  std::vector<void*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(allocator.allocate(4 * kMiB));
  uint64_t faulted = allocator.stats().faulted_bytes;
  for (int i = 0; i < 12; ++i) allocator.release(blocks[i]);  // now one contiguous range
  for (int i = 0; i < 12; ++i) blocks[i] = allocator.allocate(4 * kMiB);
  EXPECT_EQ(allocator.stats().faulted_bytes, faulted);
}

TEST(Allocator, small_blocks_do_not_cost_a_large_one_its_place) {
  Allocator allocator(region_of(1024 * kMiB));
  std::vector<void*> kept;
  uint64_t faulted = 0;
  for (int i = 0; i < 20; ++i) {
    void* temporary = allocator.allocate(64 * kMiB);
    void* batch = allocator.allocate(32 * kMiB);
    allocator.release(temporary);
    kept.push_back(allocator.allocate(100'000));  // kept, in the memory of the temporary
    allocator.release(batch);
    if (i == 0) faulted = allocator.stats().faulted_bytes;
  }
  EXPECT_LE(allocator.stats().faulted_bytes, faulted + 8 * kMiB);
  for (void* block : kept) allocator.release(block);
}

TEST(Allocator, a_full_region_gives_nullptr_and_recovers) {
  Allocator allocator(region_of(16 * kMiB));
  std::vector<void*> blocks;
  while (void* block = allocator.allocate(kMiB)) blocks.push_back(block);
  EXPECT_GE(blocks.size(), 15u);
  EXPECT_EQ(allocator.allocate(SIZE_MAX), nullptr);
  EXPECT_EQ(allocator.allocate(SIZE_MAX / 2), nullptr);
  EXPECT_GE(allocator.stats().failures, 3u);
  while (void* block = allocator.allocate(1000)) blocks.push_back(block);
  for (void* block : blocks) allocator.release(block);
  void* large = allocator.allocate(15 * kMiB);
  EXPECT_NE(large, nullptr) << "all of it is one free stretch again";
}

TEST(Allocator, what_is_released_twice_or_never_was_a_block_is_counted_and_ignored) {
  Allocator allocator(region_of(64 * kMiB));
  auto* small = static_cast<std::byte*>(allocator.allocate(1000));
  auto* large = static_cast<std::byte*>(allocator.allocate(kMiB));
  int elsewhere = 0;
  allocator.release(nullptr);
  EXPECT_EQ(allocator.stats().bad_releases, 0u);
  for (void* wrong : {static_cast<void*>(small + 64), static_cast<void*>(large + 4096),
                      static_cast<void*>(allocator.region()->base()),
                      static_cast<void*>(allocator.region()->base() + 60 * kMiB),
                      static_cast<void*>(&elsewhere)}) {
    allocator.release(wrong);
    EXPECT_EQ(allocator.share(wrong), std::nullopt);
    EXPECT_EQ(allocator.resize(wrong, 10), nullptr);
  }
  allocator.release(small);
  allocator.release(small);
  allocator.release(large);
  allocator.release(large);
  EXPECT_EQ(allocator.stats().bad_releases, 12u);
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
  void* a = allocator.allocate(1000);
  void* b = allocator.allocate(1000);
  EXPECT_NE(a, b) << "a block that was released twice is not given out twice";
}

TEST(Allocator, max_bytes_bounds_live_and_free_memory) {
  Allocator allocator(region_of(256 * kMiB), {.max_bytes = 32 * kMiB});
  std::vector<void*> blocks;
  while (void* block = allocator.allocate(3 * kMiB)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), 10u);
  EXPECT_LE(allocator.stats().peak_committed_bytes, 32 * kMiB);
  for (size_t i = 0; i < blocks.size(); i += 2) allocator.release(blocks[i]);
  // 15 MiB are free in pieces of 3: their pages are given up for one piece of 12.
  void* large = allocator.allocate(12 * kMiB);
  ASSERT_NE(large, nullptr);
  std::memset(large, 1, 12 * kMiB);
  EXPECT_LE(allocator.stats().committed_bytes, 32 * kMiB);
  EXPECT_LE(allocator.region()->backed_bytes(), 33 * kMiB);
}

TEST(Allocator, free_memory_in_gaps_adds_nothing_beyond_the_soft_limit) {
  Allocator allocator(region_of(256 * kMiB), {.soft_limit = 32 * kMiB});
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocator.allocate(3 * kMiB));
  for (size_t i = 0; i < blocks.size(); i += 2) allocator.release(blocks[i]);
  EXPECT_EQ(allocator.stats().committed_bytes, 30 * kMiB) << "kept, for blocks of this size";
  void* large = allocator.allocate(12 * kMiB);
  ASSERT_NE(large, nullptr);
  std::memset(large, 1, 12 * kMiB);
  EXPECT_LE(allocator.stats().peak_committed_bytes, 32 * kMiB);
  EXPECT_LE(allocator.region()->backed_bytes(), 33 * kMiB);
  // Blocks in use are not bounded.
  for (int i = 0; i < 10; ++i) EXPECT_NE(allocator.allocate(3 * kMiB), nullptr);
  EXPECT_EQ(allocator.stats().committed_bytes, allocator.stats().live_bytes);
}

TEST(Allocator, retained_memory_is_bounded_and_the_rest_given_back) {
  auto region = region_of(512 * kMiB);
  Allocator allocator(region, {.retain = 16 * kMiB});
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(allocator.allocate(10 * kMiB));
  EXPECT_GE(region->backed_bytes(), 100 * kMiB);
  for (void* block : blocks) allocator.release(block);
  EXPECT_LE(region->backed_bytes(), 17 * kMiB);
  EXPECT_LE(allocator.stats().free_bytes, 16 * kMiB);
  EXPECT_GE(allocator.stats().free_bytes, 15 * kMiB) << "what may stay, stays";
  uint64_t faulted = allocator.stats().faulted_bytes;
  allocator.release(allocator.allocate(14 * kMiB));
  EXPECT_EQ(allocator.stats().faulted_bytes, faulted);
  void* again = allocator.allocate(40 * kMiB);
  ASSERT_NE(again, nullptr);
  std::memset(again, 1, 40 * kMiB);
}

TEST(Allocator, resize_keeps_contents_and_moves_only_when_it_must) {
  Allocator allocator(region_of(256 * kMiB));
  auto fill = [](void* block, size_t bytes) { std::memset(block, 0x5a, bytes); };
  auto check = [](void* block, size_t bytes) {
    auto* p = static_cast<unsigned char*>(block);
    for (size_t i = 0; i < bytes; ++i) {
      if (p[i] != 0x5a) return false;
    }
    return true;
  };
  void* block = allocator.resize(nullptr, 1000);
  fill(block, 1000);
  EXPECT_EQ(allocator.resize(block, 1020), block) << "the class has space for it";
  void* moved = allocator.resize(block, 300000);
  ASSERT_NE(moved, nullptr);
  EXPECT_TRUE(check(moved, 1000));
  EXPECT_EQ(allocator.bytes_of(block), 0u) << "the old one is free";
  fill(moved, 300000);
  void* longer = allocator.resize(moved, 30000000);
  EXPECT_EQ(longer, moved) << "nothing lies behind it";
  EXPECT_TRUE(check(longer, 300000));
  void* wall = allocator.allocate(kMiB);
  EXPECT_EQ(allocator.resize(longer, 10000000), longer);
  void* in_between = allocator.allocate(10000000);
  EXPECT_LT(in_between, wall) << "what was cut off is used";
  fill(longer, 10000000);
  void* away = allocator.resize(longer, 25000000);
  EXPECT_NE(away, longer);
  EXPECT_TRUE(check(away, 10000000));
  void* small = allocator.resize(away, 100);
  EXPECT_TRUE(check(small, 100));
  EXPECT_EQ(allocator.resize(small, size_t{1} << 40), nullptr);
  EXPECT_EQ(allocator.bytes_of(small), 100u) << "untouched";
  EXPECT_EQ(allocator.stats().live_blocks, 3u);
}

TEST(Allocator, random_use_never_overwrites_a_live_or_leased_block) {
  auto region = region_of(200 * kMiB);
  Allocator allocator(region, {.retain = 20 * kMiB});
  auto reader = Region::open(region->fd());
  std::mt19937_64 random(3);
  struct Held {
    size_t bytes;
    uint64_t stamp;
  };
  struct Lent {
    Lease lease;
    uint64_t stamp;
    uint64_t offset;
  };
  std::map<void*, Held> owned;
  std::vector<Lent> lent;
  auto stamp_all = [](std::byte* p, size_t bytes, uint64_t stamp) {
    for (size_t i = 0; i + 8 <= bytes; i += 512) std::memcpy(p + i, &stamp, 8);
    if (bytes >= 8) std::memcpy(p + bytes - 8, &stamp, 8);
  };
  auto intact = [](const std::byte* p, size_t bytes, uint64_t stamp) {
    for (size_t i = 0; i + 520 <= bytes; i += 512) {
      if (std::memcmp(p + i, &stamp, 8) != 0) return false;
    }
    return bytes < 8 || std::memcmp(p + bytes - 8, &stamp, 8) == 0;
  };
  auto some_size = [&]() -> size_t {
    switch (random() % 4) {
      case 0:
        return random() % 300;
      case 1:
        return random() % 10000;
      case 2:
        return random() % 400000;
      default:
        return random() % 6000000;
    }
  };
  for (int step = 0; step < 20000; ++step) {
    uint64_t what = random() % 100;
    if (what < 45) {
      size_t bytes = some_size();
      void* block = allocator.allocate(bytes);
      if (block == nullptr) continue;
      ASSERT_FALSE(owned.contains(block));
      stamp_all(static_cast<std::byte*>(block), bytes, step);
      owned[block] = {bytes, static_cast<uint64_t>(step)};
    } else if (what < 60 && !owned.empty()) {
      auto each = std::next(owned.begin(), random() % owned.size());
      auto ref = allocator.share(each->first);
      if (!ref) continue;
      lent.push_back({Lease(random() % 2 ? reader : region, *ref), each->second.stamp,
                      region->offset_of(each->first)});
    } else if (what < 66 && !owned.empty()) {
      auto each = std::next(owned.begin(), random() % owned.size());
      auto [block, held] = *each;
      size_t bytes = some_size();
      uint64_t offset = region->offset_of(block);
      bool borrowed = std::any_of(lent.begin(), lent.end(), [&](const Lent& each_lent) {
        return each_lent.offset == offset;
      });
      if (borrowed) continue;  // the test must not write to it
      void* moved = allocator.resize(block, bytes);
      if (moved == nullptr) continue;
      owned.erase(each);
      stamp_all(static_cast<std::byte*>(moved), bytes, step);
      owned[moved] = {bytes, static_cast<uint64_t>(step)};
    } else if (what < 85 && !owned.empty()) {
      auto each = std::next(owned.begin(), random() % owned.size());
      auto [block, held] = *each;
      ASSERT_TRUE(intact(static_cast<std::byte*>(block), held.bytes, held.stamp)) << step;
      allocator.release(block);
      owned.erase(each);
    } else if (!lent.empty()) {
      size_t which = random() % lent.size();
      ASSERT_TRUE(intact(lent[which].lease.data(), lent[which].lease.bytes(), lent[which].stamp))
          << step;
      lent[which] = std::move(lent.back());
      lent.pop_back();
    }
  }
  for (auto [block, held] : owned) {
    EXPECT_TRUE(intact(static_cast<std::byte*>(block), held.bytes, held.stamp));
    allocator.release(block);
  }
  lent.clear();
  allocator.collect();
  auto stats = allocator.stats();
  EXPECT_EQ(stats.live_blocks, 0u);
  EXPECT_EQ(stats.live_bytes, 0u);
  EXPECT_EQ(stats.bad_releases, 0u);
  EXPECT_EQ(stats.stale_returns, 0u);
  EXPECT_LE(stats.free_bytes, 21 * kMiB);
}

TEST(Allocator, large_temporaries_beside_leases_commit_at_most_a_quarter_more_than_is_live) {
  auto region = region_of(1024 * kMiB);
  Allocator allocator(region);
  constexpr size_t kSingle = 15414067;  // a tenth of a batch of bench/cases/large_items.py
  std::deque<Lease> held;
  for (int step = 0; step < 300; ++step) {
    void* wide = allocator.allocate(2 * kSingle);
    void* narrow = allocator.allocate(kSingle);
    ASSERT_TRUE(wide != nullptr && narrow != nullptr);
    allocator.release(wide);
    held.push_back(allocator.lease(narrow));
    allocator.release(narrow);
    if (held.size() > 5) held.pop_front();
  }
  auto stats = allocator.stats();
  EXPECT_LE(stats.peak_committed_bytes, stats.peak_live_bytes * 5 / 4);
  EXPECT_EQ(stats.faulted_bytes, stats.peak_committed_bytes) << "nothing was faulted twice";
}

// For any allocations in between, and any time at which the record of leases first needs a page.
TEST(Allocator, small_blocks_cost_large_ones_neither_their_place_nor_growth_without_end) {
  struct Case {
    size_t small_bytes;  // size of the largest small block
    size_t kept;         // number of small blocks kept
    double committed;    // largest ratio of committed to live bytes
  };
  for (Case use :
       {Case{0, 0, 1.01}, Case{600000, 0, 1.25}, Case{9000, 2000, 1.25}, Case{900000, 60, 1.35}}) {
    auto region = region_of(1024 * kMiB);
    Allocator allocator(region);
    std::mt19937 random(2);
    std::deque<Lease> leases;
    std::deque<void*> small;
    uint64_t once_warm = 0;
    constexpr size_t kSingle = 10000000;
    auto some_small = [&] { return allocator.allocate(random() % (use.small_bytes + 1)); };
    for (int step = 0; step < 300; ++step) {
      if (step == 150) once_warm = allocator.stats().faulted_bytes;
      void* wide = allocator.allocate(2 * kSingle);
      void* during = use.small_bytes > 0 ? some_small() : nullptr;
      void* narrow = allocator.allocate(kSingle);
      ASSERT_TRUE(wide != nullptr && narrow != nullptr);
      allocator.release(wide);
      void* after = use.small_bytes > 0 ? some_small() : nullptr;
      allocator.release(during);
      for (size_t i = 0; i < use.kept / 2; ++i) small.push_back(some_small());
      while (small.size() > use.kept) {
        allocator.release(small.front());
        small.pop_front();
      }
      allocator.release(after);
      leases.push_back(allocator.lease(narrow));
      allocator.release(narrow);
      while (leases.size() > 3 + (use.kept > 0 ? random() % 3 : 0)) leases.pop_front();
    }
    auto stats = allocator.stats();
    EXPECT_LE(double(stats.peak_committed_bytes) / double(stats.peak_live_bytes), use.committed)
        << "small blocks up to " << use.small_bytes;
    EXPECT_LE(stats.faulted_bytes - once_warm, stats.peak_committed_bytes / 50)
        << "small blocks up to " << use.small_bytes;
  }
}

TEST(Allocator, needs_a_region_of_its_own) {
  auto region = region_of(16 * kMiB);
  Allocator allocator(region);
  allocator.allocate(1000);
  EXPECT_THROW(Allocator second(region), Error);
  EXPECT_THROW(Allocator none(nullptr), Error);
}

}  // namespace
}  // namespace penstock
