#include "penstock/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace penstock {
namespace {

std::vector<uint32_t> words_of(const RandomKey& key, size_t n = 64) {
  RandomStream stream(key);
  std::vector<uint32_t> words;
  for (size_t i = 0; i < n; ++i) words.push_back(stream.next_u32());
  return words;
}

TEST(RandomStream, an_address_always_has_the_same_numbers) {
  RandomKey key{.seed = 1, .epoch = 2, .index = 3, .operation = 4};
  EXPECT_EQ(words_of(key), words_of(key));
  // The same on every machine and in every release: checkpoints outlive both.
  EXPECT_EQ(words_of(key, 5),
            (std::vector<uint32_t>{0xc5bf493d, 0x48b67be4, 0xee6281e8, 0x1a1f7dba, 0x8a0ec7a4}));
}

TEST(RandomStream, any_part_of_the_address_changes_every_number) {
  RandomKey key{.seed = 1, .epoch = 2, .index = 3, .operation = 4};
  constexpr uint64_t kHigh = uint64_t{1} << 32;
  std::set<uint32_t> seen;
  size_t count = 0;
  for (RandomKey other :
       {key, RandomKey{2, 2, 3, 4}, RandomKey{1, 3, 3, 4}, RandomKey{1, 2, 4, 4},
        RandomKey{1, 2, 3, 5}, RandomKey{1 | kHigh, 2, 3, 4}, RandomKey{1, 2 | kHigh, 3, 4},
        RandomKey{1, 2, 3 | kHigh, 4}, RandomKey{2, 1, 3, 4}}) {
    for (uint32_t word : words_of(other)) seen.insert(word), ++count;
  }
  // 576 words of 32 bits: the probability of a repeat by chance is 1 in 26,000.
  EXPECT_EQ(seen.size(), count);
}

TEST(RandomStream, derived_keys_differ_by_use) {
  EXPECT_NE(derive_key(1, 2, KeyUse::kSamples), derive_key(1, 2, KeyUse::kOrder));
  EXPECT_NE(derive_key(1, 2, KeyUse::kReplacement), derive_key(1, 2, KeyUse::kOrder));
  EXPECT_NE(derive_key(1, 2, KeyUse::kOrder), derive_key(2, 1, KeyUse::kOrder));
}

TEST(RandomStream, filling_goes_on_where_single_draws_stopped) {
  RandomKey key{.seed = 9};
  std::vector<uint32_t> expected = words_of(key, 400);
  for (size_t before = 0; before < 9; ++before) {
    for (size_t n : {0, 1, 2, 3, 4, 5, 31, 32, 33, 200}) {
      RandomStream stream(key);
      for (size_t i = 0; i < before; ++i) stream.next_u32();
      std::vector<uint32_t> got(n);
      stream.fill(got);
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(got[i], expected[before + i]);
      ASSERT_EQ(stream.next_u32(), expected[before + n]);
    }
  }
}

TEST(RandomStream, a_64_bit_word_is_the_low_word_first) {
  RandomKey key{.seed = 5};
  std::vector<uint32_t> words = words_of(key, 2);
  EXPECT_EQ(RandomStream(key).next_u64(), words[0] | uint64_t{words[1]} << 32);
}

TEST(RandomStream, uniform_numbers_fill_the_unit_interval_evenly) {
  RandomStream stream({.seed = 11});
  constexpr int kBins = 64, kDraws = 640'000;
  int bins[kBins] = {};
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    double x = stream.uniform();
    ASSERT_GE(x, 0.0);
    ASSERT_LT(x, 1.0);
    ++bins[static_cast<int>(x * kBins)];
    sum += x;
  }
  double expected = double{kDraws} / kBins, chi2 = 0;
  for (int bin : bins) chi2 += (bin - expected) * (bin - expected) / expected;
  EXPECT_LT(chi2, 63 + 5 * std::sqrt(2.0 * 63));
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * std::sqrt(1.0 / 12 / kDraws));
}

TEST(RandomStream, below_favours_nobody) {
  RandomStream stream({.seed = 12});
  for (uint64_t n : {1, 2, 3, 7, 10}) {
    std::vector<int> bins(n);
    constexpr int kDraws = 100'000;
    for (int i = 0; i < kDraws; ++i) {
      uint64_t x = stream.below(n);
      ASSERT_LT(x, n);
      ++bins[x];
    }
    double expected = double{kDraws} / static_cast<double>(n), chi2 = 0;
    for (int bin : bins) chi2 += (bin - expected) * (bin - expected) / expected;
    double freedom = static_cast<double>(n - 1);
    EXPECT_LE(chi2, freedom + 5 * std::sqrt(2 * freedom)) << n;
  }
}

// With n = 3 * 2^62 a plain multiply would draw every third number twice as often.
TEST(RandomStream, below_favours_nobody_where_rejection_matters) {
  RandomStream stream({.seed = 13});
  uint64_t n = uint64_t{3} << 62;
  int bins[3] = {};
  constexpr int kDraws = 90'000;
  for (int i = 0; i < kDraws; ++i) ++bins[stream.below(n) % 3];
  for (int bin : bins) EXPECT_NEAR(bin, kDraws / 3, 5 * std::sqrt(kDraws * 2.0 / 9));
}

}  // namespace
}  // namespace penstock
