#include "penstock/pipeline/streams/parallel_map_budget.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace penstock {
namespace {

// ParallelMaps with elements of a given size, which are made as soon as allowed.
struct ParallelMapsOf {
  ParallelMapsOf(uint64_t max_bytes, const std::vector<uint64_t>& elements)
      : all(max_bytes, elements.size()) {
    for (uint64_t each : elements) add(each);
  }
  void add(uint64_t each) {
    const size_t i = made.size();
    made.push_back(0);
    sizes.push_back(each);
    parts.push_back(std::make_unique<ParallelMapBudget::Part>(all, [this, i] { make(i); }));
  }
  // Makes as many elements as there is space for.
  void make(size_t i, uint64_t least = 0) {
    while (made[i] < std::max(parts[i]->most(sizes[i], 0) / sizes[i], least)) {
      ++made[i];
      if (made[i] > least) ahead.push_back(i);
      parts[i]->is(made[i] * sizes[i]);
    }
    parts[i]->wait(made[i] == 0 && least == 0 && parts[i]->may_have(sizes[i]));
  }
  // Takes the next element of map i; returns whether it was ready before the request.
  bool take(size_t i) {
    const bool there = made[i] > 0;
    make(i, 1);
    --made[i];
    parts[i]->is(made[i] * sizes[i]);
    make(i);
    all.grant_space();
    return there;
  }
  ParallelMapBudget all;
  std::vector<uint64_t> made, sizes;
  std::vector<size_t> ahead;  // the maps of the elements, in the order in which they were made
  std::vector<std::unique_ptr<ParallelMapBudget::Part>> parts;
};

TEST(ParallelMapBudget, what_is_made_ahead_is_of_those_whose_turn_comes_next) {
  ParallelMapsOf of(3, std::vector<uint64_t>(8, 1));
  for (size_t i = 0; i < 8; ++i) of.take(i);
  // There is space for three of eight elements, and each is ready when its turn comes.
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_TRUE(of.take(i)) << round << " " << i;
      EXPECT_LE(of.all.bytes(), 3u);
    }
  }
  EXPECT_EQ(of.all.over(), 0u);
}

TEST(ParallelMapBudget, a_map_that_is_asked_has_one_element_however_little_space_there_is) {
  ParallelMapsOf of(10, {20, 1, 1});
  EXPECT_FALSE(of.take(0));
  EXPECT_FALSE(of.take(0));
  EXPECT_EQ(of.all.bytes(), 0u);
  of.parts[0]->is(20);
  EXPECT_EQ(of.all.over(), 10u);
  of.parts[0]->is(0);
  EXPECT_EQ(of.all.over(), 0u);
}

TEST(ParallelMapBudget, an_element_larger_than_the_budget_holds_up_no_other_map) {
  ParallelMapsOf of(10, {20, 1, 1});
  of.take(0);
  of.take(1);
  EXPECT_TRUE(of.take(1));
  of.take(2);
  EXPECT_TRUE(of.take(1));
}

TEST(ParallelMapBudget, what_one_has_and_is_not_asked_for_leaves_others_theirs) {
  ParallelMapsOf of(100, {1, 1, 1, 1});
  for (size_t i = 0; i < 4; ++i) {
    of.take(i);
    EXPECT_EQ(of.made[i], 25u);
  }
}

TEST(ParallelMapBudget, what_is_in_use_counts_but_takes_nothing_of_ones_share) {
  ParallelMapBudget all(10, 5);
  ParallelMapBudget::Part one(all, [] {}), other(all, [] {});
  EXPECT_EQ(one.most(2, 0), 2u);
  one.is(3);
  EXPECT_EQ(one.most(2, 3), 2u);
  EXPECT_EQ(one.most(2, 9), 1u);
  EXPECT_EQ(one.most(2, 10), 0u);
  EXPECT_EQ(other.most(2, 0), 2u);
  one.is(9);
  EXPECT_EQ(other.most(2, 0), 1u);
}

TEST(ParallelMapBudget, space_that_others_need_is_not_given) {
  ParallelMapsOf of(8, std::vector<uint64_t>(4, 1));
  uint64_t space = 2;
  of.all.set_space([&] { return space; });
  for (size_t i = 0; i < 4; ++i) of.take(i);
  EXPECT_EQ(of.all.bytes(), 2u);
  space = 0;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < 4; ++i) of.take(i);
  }
  EXPECT_EQ(of.all.bytes(), 0u);
  space = 100;  // max_bytes still holds
  for (size_t i = 0; i < 4; ++i) of.take(i);
  EXPECT_EQ(of.all.bytes(), 8u);
}

TEST(ParallelMapBudget, nobody_is_made_to_read_while_somebody_reads) {
  ParallelMapsOf of(1, {1, 1});
  of.take(0);  // has the space
  of.take(1);  // waits
  of.made[0] = 0;
  of.parts[0]->is(0);
  {
    const ParallelMapBudget::Reading reading(of.all);
    of.all.grant_space();
    EXPECT_EQ(of.made[1], 0u);
  }
  of.all.grant_space();
  EXPECT_EQ(of.made[1], 1u);
}

TEST(ParallelMapBudget, a_destroyed_map_waits_no_more) {
  ParallelMapsOf of(1, {1, 1, 1});
  of.take(0);
  of.take(1);
  of.take(2);
  of.parts[1].reset();
  of.made[0] = 0;
  of.parts[0]->is(0);
  of.all.grant_space();
  EXPECT_EQ(of.made[2], 1u);
}

}  // namespace
}  // namespace penstock
