#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "penstock/memory/block_table.h"
#include "penstock/memory/page_heap.h"

namespace penstock {
namespace {

// A region in which all memory that was ever used has pages.
struct World {
  SpanMap spans{1};
  Backing backing;
  uint32_t live = 0;
  uint32_t peak = 0;

  uint32_t take(uint32_t count) {
    auto start = spans.allocate(count, backing);
    if (!start) {
      uint32_t more = count - spans.tail();
      backing.resize(spans.end() + more);
      spans.extend(more);
      backing.set(spans.end() - more, more);
      start = spans.allocate(count, backing);
    }
    live += count;
    peak = std::max(peak, live);
    return *start;
  }
  void give(uint32_t start) {
    live -= spans.length(start);
    spans.release(start);
  }
  double waste() const { return double(spans.end() - 1) / peak; }
};

TEST(SpanMap, agrees_with_a_model_under_random_use) {
  std::mt19937 random(1);
  World world;
  std::map<uint32_t, uint32_t> model;  // start -> count of taken spans
  auto check = [&] {
    uint32_t at = 1;
    uint32_t free_units = 0;
    std::vector<Backing::Stretch> free_spans;
    world.spans.visit_free([&](Backing::Stretch span) {
      free_spans.push_back(span);
      free_units += span.count;
      return true;
    });
    for (size_t i = 1; i < free_spans.size(); ++i) {  // highest first, never touching
      ASSERT_GT(free_spans[i - 1].first, free_spans[i].first + free_spans[i].count);
    }
    for (auto [start, count] : model) {
      ASSERT_GE(start, at) << "overlap";
      at = start + count;
      ASSERT_FALSE(world.spans.is_free(start, 1));
      ASSERT_EQ(world.spans.length(start), count);
    }
    ASSERT_EQ(free_units + world.spans.taken(), world.spans.end() - 1);
  };
  for (int step = 0; step < 20000; ++step) {
    uint32_t what = random() % 10;
    if (what < 5 || model.empty()) {
      uint32_t count = 1 + random() % 50;
      model[world.take(count)] = count;
    } else {
      auto each = std::next(model.begin(), random() % model.size());
      auto [start, count] = *each;
      if (what < 8) {
        world.give(start);
        model.erase(each);
      } else if (what == 8 && count > 1) {
        uint32_t less = 1 + random() % (count - 1);
        world.spans.shrink(start, less);
        each->second = less;
        world.live -= count - less;
      } else if (world.spans.grow(start, count + 1 + random() % 10)) {
        each->second = world.spans.length(start);
        world.live += each->second - count;
      }
    }
    if (step % 100 == 0) check();
  }
  check();
  for (auto [start, count] : model) world.give(start);
  EXPECT_EQ(world.spans.tail(), world.spans.end() - 1) << "all merged again";
}

// The case of bench/cases/large_items.py: float64 temporaries of 308 MB, float32 results of 154 MB,
// several of which are held.
TEST(SpanMap, large_temporaries_and_leases_returned_late_waste_little) {
  constexpr uint32_t kDouble = 4704;
  constexpr uint32_t kSingle = 2352;
  for (size_t held : {2u, 3u, 5u, 8u}) {
    for (int pattern = 0; pattern < 4; ++pattern) {
      World world;
      std::deque<uint32_t> results;
      std::mt19937 random(7);
      for (int step = 0; step < 500; ++step) {
        uint32_t wide = world.take(kDouble);
        if (pattern == 1) world.give(wide);
        uint32_t narrow = world.take(kSingle);
        if (pattern != 1) world.give(wide);
        if (pattern == 2 || (pattern == 3 && random() % 2)) {
          uint32_t another = world.take(kSingle);
          world.give(narrow);
          narrow = another;
        }
        results.push_back(narrow);
        size_t keep = pattern == 3 ? random() % (held + 1) : held;
        while (results.size() > keep) {
          world.give(results.front());
          results.pop_front();
        }
      }
      EXPECT_LE(world.waste(), 1.25) << "held " << held << " pattern " << pattern;
    }
  }
}

TEST(SpanMap, prefers_a_span_that_has_its_pages) {
  World world;
  uint32_t bare = world.take(4);
  world.take(1);
  uint32_t backed = world.take(6);
  world.take(1);
  world.give(bare);
  world.give(backed);
  world.backing.clear(bare, 4);
  EXPECT_EQ(world.spans.allocate(4, world.backing), backed);
  EXPECT_EQ(world.spans.allocate(4, world.backing), bare);
}

TEST(Backing, counts_and_finds) {
  Backing backing;
  backing.resize(300);
  backing.set(10, 200);
  backing.set(50, 10);
  EXPECT_EQ(backing.total(), 200u);
  EXPECT_EQ(backing.missing(0, 300), 100u);
  backing.clear(63, 66);
  EXPECT_EQ(backing.total(), 134u);
  auto gap = backing.next(20, 300, false);
  EXPECT_EQ(gap.first, 63u);
  EXPECT_EQ(gap.count, 66u);
  auto last = backing.last_present(20, 300);
  EXPECT_EQ(last.first, 129u);
  EXPECT_EQ(last.count, 81u);
  EXPECT_EQ(backing.last_present(65, 100).count, 0u);
  auto none = backing.next(210, 300, true);
  EXPECT_EQ(none.count, 0u);
}

TEST(SizeClass, every_size_has_the_smallest_class_that_holds_it) {
  for (size_t bytes = 0; bytes <= size_class::kLargest; ++bytes) {
    uint32_t c = size_class::of(bytes);
    ASSERT_GE(size_class::bytes_of(c), bytes);
    if (c > 0) {
      ASSERT_LT(size_class::bytes_of(c - 1), bytes);
    }
    ASSERT_EQ(size_class::bytes_of(c) % 64, 0u);
  }
}

TEST(SizeClass, every_byte_of_a_slab_is_found_in_its_block) {
  for (const auto& division : size_class::kDivisions) {
    ASSERT_LE(size_t{division.blocks} * division.bytes, division.units * size_class::kUnit);
    for (size_t at = 0; at < division.units * size_class::kUnit; ++at) {
      ASSERT_EQ(division.index(at), at / division.bytes) << division.bytes;
    }
  }
}

}  // namespace
}  // namespace penstock
