#include "penstock/base/bijection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/random.h"

namespace penstock {
namespace {

std::vector<uint64_t> all_of(const Bijection& bijection) {
  std::vector<uint64_t> images(bijection.length());
  bijection.map(0, images.size(), images.data());
  return images;
}

// Maps all positions, in pieces, and marks every image in a bitmap.
bool is_permutation(const Bijection& bijection) {
  std::vector<uint64_t> seen(bijection.length() / 64 + 1);
  std::vector<uint64_t> images(8192);
  for (uint64_t first = 0; first < bijection.length(); first += images.size()) {
    uint64_t count = std::min<uint64_t>(images.size(), bijection.length() - first);
    bijection.map(first, count, images.data());
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t image = images[i];
      if (image >= bijection.length()) return false;
      uint64_t bit = uint64_t{1} << (image % 64);
      if (seen[image / 64] & bit) return false;
      seen[image / 64] |= bit;
    }
  }
  return true;
}

// How many standard deviations the counts are from "all equally likely". For many counts the
// statistic is close to normal; seeds are fixed, so a bound of 4 either always or never holds.
template <typename Counts>
double deviation(const Counts& counts) {
  double total = 0, chi2 = 0;
  for (auto count : counts) total += static_cast<double>(count);
  double expected = total / static_cast<double>(counts.size());
  for (auto count : counts) {
    double off = static_cast<double>(count) - expected;
    chi2 += off * off / expected;
  }
  double freedom = static_cast<double>(counts.size() - 1);
  return (chi2 - freedom) / std::sqrt(2 * freedom);
}

uint64_t key_of(uint64_t i) { return derive_key(77, i, KeyUse::kOrder); }

TEST(Bijection, every_length_up_to_5000_is_a_permutation) {
  for (uint64_t length = 0; length <= 5000; ++length) {
    ASSERT_TRUE(is_permutation(Bijection(length, key_of(length)))) << length;
  }
}

class BijectionNearPowerOfTwo : public ::testing::TestWithParam<int> {};

TEST_P(BijectionNearPowerOfTwo, is_a_permutation) {
  for (uint64_t length : {-1, 0, 1}) {
    length += uint64_t{1} << GetParam();
    EXPECT_TRUE(is_permutation(Bijection(length, key_of(length)))) << length;
  }
}

// Under sanitizers, fewer lengths: the code is the same at every length, and about 20 times slower.
#ifdef PENSTOCK_SANITIZED
constexpr int kExponents = 21;
#else
constexpr int kExponents = 27;
#endif
INSTANTIATE_TEST_SUITE_P(Exponents, BijectionNearPowerOfTwo, ::testing::Range(12, kExponents));

TEST(Bijection, many_at_once_are_the_same_as_one_by_one) {
  for (uint64_t length : {1u, 255u, 256u, 257u, 300u, 1000u, 65537u}) {
    Bijection bijection(length, 5);
    for (uint64_t first = 0; first < length; first += 1 + length / 9) {
      for (uint64_t count : {0u, 1u, 63u, 64u, 65u, 200u}) {
        count = std::min(count, length - first);
        std::vector<uint64_t> images(count + 1, 12345678);
        bijection.map(first, count, images.data());
        for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(images[i], bijection(first + i));
        ASSERT_EQ(images[count], 12345678u) << "wrote past the end";
      }
    }
  }
}

TEST(Bijection, the_longest_lengths_stay_inside_and_repeat_nothing) {
  for (uint64_t length : {(uint64_t{1} << 32) - 1, (uint64_t{1} << 32) + 1, (uint64_t{1} << 61) + 1,
                          Bijection::kMaxLength}) {
    Bijection bijection(length, 9);
    std::vector<uint64_t> images;
    for (uint64_t first : {uint64_t{0}, length / 2, length - 100'000}) {
      size_t before = images.size();
      images.resize(before + 100'000);
      bijection.map(first, 100'000, images.data() + before);
      EXPECT_EQ(bijection(first + 99'999), images.back());
    }
    std::sort(images.begin(), images.end());
    EXPECT_LT(images.back(), length);
    EXPECT_EQ(std::adjacent_find(images.begin(), images.end()), images.end());
  }
  EXPECT_THROW(Bijection(Bijection::kMaxLength + 1, 0), Error);
}

// A saved state must mean the same after an upgrade and on another machine.
TEST(Bijection, orders_never_change) {
  EXPECT_EQ(all_of(Bijection(8, 42)), (std::vector<uint64_t>{7, 6, 2, 1, 3, 0, 5, 4}));
  Bijection thousand(1000, 42), most(Bijection::kMaxLength, 42);
  std::vector<uint64_t> got{thousand(0), thousand(1), thousand(999), most(0), most(1)};
  EXPECT_EQ(got, (std::vector<uint64_t>{87, 209, 778, 4437077000618975289, 821541738713377951}));
}

TEST(Bijection, all_orders_of_a_few_elements_are_equally_likely) {
  for (uint64_t length : {2u, 3u, 4u, 5u}) {
    std::map<std::vector<uint64_t>, int> count;
    for (uint64_t i = 0; i < 60'000; ++i) ++count[all_of(Bijection(length, key_of(i)))];
    size_t orders = 1;
    for (uint64_t i = 2; i <= length; ++i) orders *= i;
    ASSERT_EQ(count.size(), orders);
    std::vector<int> counts;
    for (const auto& [order, times] : count) counts.push_back(times);
    EXPECT_LT(deviation(counts), 4) << length;
  }
}

// Lengths on both sides of the table's end, and lengths that fill rows and columns exactly or not.
class BijectionStatistics : public ::testing::TestWithParam<uint64_t> {
 protected:
  uint64_t length_ = GetParam();
  uint64_t keys_ = 6'000'000 / length_;
  template <typename Visit>
  void for_all_keys(Visit visit) {
    std::vector<uint64_t> images(length_);
    for (uint64_t i = 0; i < keys_; ++i) {
      Bijection(length_, key_of(i)).map(0, length_, images.data());
      visit(images);
    }
  }
};

TEST_P(BijectionStatistics, every_element_is_equally_likely_at_every_position) {
  std::vector<uint32_t> counts(length_ * length_);
  for_all_keys([&](const std::vector<uint64_t>& images) {
    for (uint64_t i = 0; i < length_; ++i) ++counts[i * length_ + images[i]];
  });
  EXPECT_LT(std::abs(deviation(counts)), 4);
}

TEST_P(BijectionStatistics, neighbours_land_at_any_distance) {
  for (uint64_t stride : {uint64_t{1}, uint64_t{2}, uint64_t{16}, length_ / 2}) {
    std::vector<uint32_t> counts(length_ - 1);
    for_all_keys([&](const std::vector<uint64_t>& images) {
      for (uint64_t i = 0; i + stride < length_; ++i) {
        ++counts[(images[i + stride] + length_ - images[i]) % length_ - 1];
      }
    });
    EXPECT_LT(std::abs(deviation(counts)), 4) << stride;
  }
}

// Fixed points, and neighbours that stay neighbours, are as frequent as in a fair shuffle: the mean
// of each is 1, with a Poisson distribution. So are the parities of cycles.
TEST_P(BijectionStatistics, rare_things_are_as_rare_as_in_a_fair_shuffle) {
  double fixed = 0, fixed_squared = 0, adjacent = 0, odd = 0;
  std::vector<bool> seen(length_);
  for_all_keys([&](const std::vector<uint64_t>& images) {
    double fixed_here = 0;
    uint64_t cycles = 0;
    std::fill(seen.begin(), seen.end(), false);
    for (uint64_t i = 0; i < length_; ++i) {
      fixed_here += images[i] == i;
      adjacent += i + 1 < length_ && images[i + 1] == (images[i] + 1) % length_;
      cycles += !seen[i];
      for (uint64_t j = i; !seen[j]; j = images[j]) seen[j] = true;
    }
    fixed += fixed_here;
    fixed_squared += fixed_here * fixed_here;
    odd += static_cast<double>((length_ - cycles) % 2);
  });
  double n = static_cast<double>(keys_), mean = fixed / n;
  EXPECT_NEAR(mean, 1, 4 / std::sqrt(n));
  EXPECT_NEAR(fixed_squared / n - mean * mean, 1, 4 * std::sqrt(3 / n));
  EXPECT_NEAR(adjacent / n, 1, 4 / std::sqrt(n));
  EXPECT_NEAR(odd / n, 0.5, 2 / std::sqrt(n));
}

INSTANTIATE_TEST_SUITE_P(Lengths, BijectionStatistics,
                         ::testing::Values(64, 256, 257, 272, 273, 512, 1000));

TEST(Bijection, within_a_long_order_one_element_says_nothing_about_the_next) {
  constexpr uint64_t kLength = 1'000'003, kBins = 32;
  std::vector<uint64_t> images = all_of(Bijection(kLength, key_of(1)));
  std::vector<uint32_t> pairs(kBins * kBins), early(kBins);
  double covariance = 0, variance = 0;
  for (uint64_t i = 0; i + 1 < kLength; ++i) {
    ++pairs[images[i] * kBins / kLength * kBins + images[i + 1] * kBins / kLength];
    double here = static_cast<double>(images[i]) / kLength - 0.5;
    double next = static_cast<double>(images[i + 1]) / kLength - 0.5;
    covariance += here * next;
    variance += here * here;
    if (i < kLength / 50) ++early[images[i] * kBins / kLength];
  }
  EXPECT_LT(std::abs(deviation(pairs)), 4);
  EXPECT_LT(std::abs(deviation(early)), 4);
  EXPECT_LT(std::abs(covariance / variance), 4 / std::sqrt(double{kLength}));
}

// For the next epoch, the next seed, or a length larger by one, the orders are uncorrelated.
TEST(Bijection, neighbouring_epochs_seeds_and_lengths_are_uncorrelated) {
  constexpr uint64_t kLength = 100'003, kBins = 32;
  Bijection here(kLength, derive_key(1, 1, KeyUse::kOrder));
  std::vector<uint64_t> images = all_of(here);
  for (const Bijection& other :
       {Bijection(kLength, derive_key(1, 2, KeyUse::kOrder)),
        Bijection(kLength, derive_key(2, 1, KeyUse::kOrder)),
        Bijection(kLength, derive_key(1, 1, KeyUse::kReplacement)), Bijection(kLength, 0),
        Bijection(kLength + 1, derive_key(1, 1, KeyUse::kOrder))}) {
    std::vector<uint32_t> joint(kBins * kBins);
    double covariance = 0, variance = 0;
    int same = 0;
    for (uint64_t i = 0; i < kLength; ++i) {
      uint64_t image = other(i);
      ++joint[images[i] * kBins / kLength * kBins + image * kBins / (kLength + 1)];
      double x = static_cast<double>(images[i]) / kLength - 0.5;
      covariance += x * (static_cast<double>(image) / kLength - 0.5);
      variance += x * x;
      same += image == images[i];
    }
    EXPECT_LT(std::abs(deviation(joint)), 4);
    EXPECT_LT(std::abs(covariance / variance), 4 / std::sqrt(double{kLength}));
    EXPECT_LT(same, 8);  // the mean is 1
  }
}

}  // namespace
}  // namespace penstock
