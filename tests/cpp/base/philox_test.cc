#include <gtest/gtest.h>

#include <vector>

#include "penstock/base/random.h"

namespace penstock::philox {
namespace {

// "philox4x32 10" of tests/kat_vectors in the Random123 distribution.
static_assert(block({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});

TEST(Philox, gives_the_published_answers) {
  EXPECT_EQ(block({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(block({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, many_at_once_are_the_same_as_one_by_one) {
  Key key{0xa4093822, 0x299f31d0};
  // The last start wraps within every length beyond 12 words, at different places of a group.
  for (uint32_t start : {0u, 7u, 0x80000000u, 0xfffffffdu}) {
    Counter counter{start, 0x85a308d3, 0x13198a2e, 0x03707344};
    for (size_t n = 0; n < 300; ++n) {
      std::vector<uint32_t> words(n + 1, 0xdeadbeef);
      fill(words.data(), n, key, counter);
      for (size_t i = 0; i < n; ++i) {
        Counter at = counter;
        at[0] += static_cast<uint32_t>(i / 4);
        ASSERT_EQ(words[i], block(at, key)[i % 4]) << "word " << i << " of " << n;
      }
      ASSERT_EQ(words[n], 0xdeadbeef) << "wrote past the end of " << n;
    }
  }
}

}  // namespace
}  // namespace penstock::philox
