#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/train/tower.h"

namespace penstock::train {
namespace {

constexpr size_t kAveraged = 10'000;

std::vector<Slab> towers(size_t count) {
  std::vector<Slab> made;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < count; ++i) {
    made.push_back(Slab::make(Layout{{"w", {kAveraged}}}));
    for (float& x : made.back().values()) x = normal(random);
  }
  return made;
}

std::vector<float> copy_of(const Slab& slab) {
  return {slab.values().begin(), slab.values().end()};
}

TEST(AddTowers, it_is_a_tree_over_their_numbers) {
  const auto slabs = towers(5);
  std::vector<std::vector<float>> v;
  for (const Slab& slab : slabs) v.push_back(copy_of(slab));
  add_towers(slabs, std::vector<float>{1, 1, 1, 0.5, 1}, 0, slabs[0].layout().floats());
  for (size_t i = 0; i < kAveraged; ++i) {
    const float right = v[2][i] + v[3][i] * 0.5f;
    ASSERT_EQ(slabs[0].values()[i], ((v[0][i] + v[1][i]) + right) + v[4][i]);
    for (size_t tower = 1; tower < 5; ++tower) ASSERT_EQ(slabs[tower].values()[i], 0);
  }
}

TEST(AddTowers, ranges_on_threads_of_their_own_give_the_same_bits) {
  for (size_t count : {1, 2, 3, 6, 8}) {
    const auto whole = towers(count), cut = towers(count);
    const std::vector<float> weights(count, 0.7f);
    const size_t floats = whole[0].layout().floats();
    add_towers(whole, weights, 0, floats);
    std::vector<std::thread> threads;
    const size_t cuts[] = {0, 1, 777, 5000, floats};
    for (size_t i = 0; i + 1 < std::size(cuts); ++i) {
      threads.emplace_back([&, i] { add_towers(cut, weights, cuts[i], cuts[i + 1]); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(copy_of(whole[0]), copy_of(cut[0]));
  }
}

TEST(AddTowers, a_tower_of_weight_0_has_no_part_in_it_even_if_it_is_not_finite) {
  const auto slabs = towers(3);
  const auto first = copy_of(slabs[0]), third = copy_of(slabs[2]);
  slabs[1].values()[5] = std::numeric_limits<float>::quiet_NaN();
  add_towers(slabs, std::vector<float>{1, 0, 1}, 0, kAveraged);
  for (size_t i = 0; i < kAveraged; ++i) ASSERT_EQ(slabs[0].values()[i], first[i] + third[i]);
}

TEST(AddTowers, invalid_arguments_are_refused) {
  auto slabs = towers(2);
  const std::vector<float> two(2, 1), three(3, 1);
  const size_t floats = slabs[0].layout().floats();
  EXPECT_THROW(add_towers(slabs, three, 0, 1), Error);
  EXPECT_THROW(add_towers({}, {}, 0, 0), Error);
  EXPECT_THROW(add_towers(slabs, two, 0, floats + 1), Error);
  EXPECT_THROW(add_towers(slabs, two, 2, 1), Error);
  slabs[1] = Slab::make(Layout{{"w", {kAveraged, 1}}});
  EXPECT_THROW(add_towers(slabs, two, 0, 1), Error);
}

}  // namespace
}  // namespace penstock::train
