#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "penstock/base/error.h"
#include "penstock/train/layout.h"

namespace penstock::train {
namespace {

void check(const Layout& layout, size_t shards) {
  const auto ranges = partition(layout, shards);
  ASSERT_EQ(ranges.size(), shards);
  size_t next = 0;
  for (const Range& range : ranges) {
    EXPECT_EQ(range.begin, next);
    EXPECT_LT(range.begin, range.end);
    EXPECT_EQ(range.begin % Layout::kAlign, 0u);
    next = range.end;
  }
  EXPECT_EQ(next, layout.floats());
  // Equal except for a cache line and the tolerance of the cuts on both sides.
  const size_t share = layout.floats() / shards;
  for (const Range& range : ranges) {
    EXPECT_LE(range.size(), share + share / 4 + 4 * Layout::kAlign);
  }
  EXPECT_EQ(partition(layout, shards), ranges);
}

TEST(Partition, random_layouts_are_covered_once_and_evenly) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<BlockSpec> specs;
    const size_t blocks = 1 + random() % 12;
    for (size_t i = 0; i < blocks; ++i) {
      const auto size = static_cast<int64_t>(1 + random() % (random() % 3 == 0 ? 100'000 : 50));
      specs.push_back({"b" + std::to_string(i), {size}});
    }
    const Layout layout(specs);
    const size_t lines = (layout.floats() + Layout::kAlign - 1) / Layout::kAlign;
    for (size_t shards : {size_t{1}, size_t{2}, size_t{3}, std::min<size_t>(7, lines), lines}) {
      if (shards <= std::min(lines, kMaxShards)) check(layout, shards);
    }
  }
}

TEST(Partition, cuts_go_between_blocks_where_they_can_and_through_large_ones) {
  const Layout between{{"a", {1000}}, {"b", {1040}}};
  EXPECT_EQ(partition(between, 2)[1].begin, between.at("b").offset);
  const Layout through{{"a", {100'000}}, {"b", {10}}};
  const auto ranges = partition(through, 4);
  EXPECT_EQ(ranges[1].begin % Layout::kAlign, 0u);
  EXPECT_LT(ranges[2].begin, through.at("b").offset);
}

TEST(Partition, more_shards_than_lines_are_refused) {
  const Layout layout{{"a", {40}}};
  EXPECT_EQ(partition(layout, 3).size(), 3u);
  EXPECT_THROW(partition(layout, 4), Error);
  EXPECT_THROW(partition(layout, 0), Error);
}

}  // namespace
}  // namespace penstock::train
