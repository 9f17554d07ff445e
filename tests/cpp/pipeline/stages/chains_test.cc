#include <random>

#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "reading.h"
#include "reference.h"

namespace penstock {
namespace {

using testing::Reading;
using testing::tensor;
namespace reference = testing::reference;

// A chain of stages, and its reference.
struct Chain {
  Node::Ref node;
  reference::Dataset expected;
};

class Random {
 public:
  explicit Random(uint32_t seed) : numbers_(seed) {}

  uint64_t below(uint64_t n) { return numbers_() % n; }

  Chain source() {
    if (below(3) == 0) {
      const auto length = below(7);
      std::vector<Example> elements;
      reference::Elements values;
      for (uint64_t i = 0; i < length; ++i) {
        values.push_back(static_cast<int64_t>(below(1000)));
        elements.push_back({{"", tensor<int64_t>({}, {values.back()})}});
      }
      auto spec = std::make_shared<ElementSpec>(
          std::vector<Leaf>{{"", LeafKind::kDense, DType::kInt64, {}}});
      return {nodes::items(elements, spec), [values](uint64_t) { return values; }};
    }
    const auto begin = static_cast<int64_t>(below(100));
    const auto end = static_cast<int64_t>(below(400));
    const int64_t step = end < begin ? -3 : static_cast<int64_t>(1 + below(4));
    return {nodes::range(begin, end, step), reference::range(begin, end, step)};
  }

  // Appends a random stage to a chain.
  Chain stage(const Chain& in) {
    const uint64_t n = below(50);
    switch (below(8)) {
      case 0:
        return {nodes::take(in.node, n), reference::take(in.expected, n)};
      case 1:
        return {nodes::skip(in.node, n), reference::skip(in.expected, n)};
      case 2: {
        const auto world = static_cast<uint32_t>(1 + n % 4);
        const auto rank = static_cast<uint32_t>(below(world));
        const uint64_t rest = below(3);
        return {nodes::shard(in.node, rank, world, static_cast<Remainder>(rest)),
                reference::shard(in.expected, rank, world, static_cast<reference::Rest>(rest))};
      }
      case 3:
        return {nodes::shuffle(in.node, n, n % 4 != 0),
                reference::shuffle(in.expected, n, n % 4 != 0)};
      case 4:
        return {nodes::repeat(in.node, 1 + n % 3), reference::repeat(in.expected, 1 + n % 3)};
      case 5: {
        Chain other = chain(1);
        return {nodes::concatenate(std::vector<Node::Ref>{in.node, other.node, in.node}),
                reference::concatenate({in.expected, other.expected, in.expected})};
      }
      case 6: {
        const uint64_t cycle = 1 + below(4), block = 1 + below(9);
        std::vector<Chain> others = {chain(1), chain(2), chain(0)};
        std::vector<Node::Ref> nodes = {in.node};
        std::vector<reference::Dataset> expected = {in.expected};
        for (const Chain& other : others) {
          nodes.push_back(other.node);
          expected.push_back(other.expected);
        }
        return {nodes::interleave(nodes, cycle, block), [=](uint64_t epoch) {
                  return reference::interleave(expected, cycle, block, epoch);
                }};
      }
      default:
        return in;
    }
  }

  Chain chain(uint64_t stages) {
    Chain chain = source();
    for (uint64_t i = 0; i < stages; ++i) chain = stage(chain);
    return chain;
  }

 private:
  std::mt19937 numbers_;
};

constexpr uint64_t kMax = 1500;

reference::Elements shortened(reference::Elements elements) {
  if (elements.size() > kMax) elements.resize(kMax);
  return elements;
}

std::string shown(const Reading& reading) {
  std::string text;
  for (const std::string& title : reading.titles()) text += (text.empty() ? "" : " | ") + title;
  return text;
}

TEST(Chains, give_what_the_reference_says) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    Chain chain = random.chain(1 + random.below(5));
    Reading reading(chain.node);
    for (uint64_t epoch : {0, 3}) {
      reference::Elements expected = chain.expected(epoch);
      ASSERT_EQ(reading.length(), expected.size()) << shown(reading);
      ASSERT_EQ(testing::numbers(reading.epoch(epoch, 0, kMax, 1 + random.below(64))),
                shortened(expected))
          << shown(reading);
    }
  }
}

TEST(Chains, any_positions_may_be_asked_for) {
  for (uint32_t seed = 1000; seed < 1100; ++seed) {
    Random random(seed);
    Chain chain = random.chain(1 + random.below(5));
    Reading reading(chain.node);
    reference::Elements all = chain.expected(1);
    if (all.empty()) continue;
    for (int i = 0; i < 5; ++i) {
      std::vector<uint64_t> positions(1 + random.below(50));
      reference::Elements expected;
      for (uint64_t& position : positions) {
        position = random.below(all.size());
        expected.push_back(all[position]);
      }
      ASSERT_EQ(testing::numbers(reading.at({1, 0}, positions, 13)), expected) << shown(reading);
    }
  }
}

TEST(Chains, zip_and_enumerate_put_them_side_by_side) {
  for (uint32_t seed = 2000; seed < 2050; ++seed) {
    Random random(seed);
    Chain a = random.chain(2), b = random.chain(2);
    auto zipped = nodes::zip(std::vector<Node::Ref>{a.node, b.node});
    Reading reading(nodes::enumerate(zipped));
    reference::Lists expected = reference::zip({a.expected, b.expected}, 2);
    auto made = reading.epoch(2, 0, kMax);
    ASSERT_EQ(made.size(), std::min<size_t>(expected.size(), kMax)) << shown(reading);
    for (size_t i = 0; i < made.size(); ++i) {
      ASSERT_EQ(testing::numbers({made[i]}, "0"), (reference::Elements{static_cast<int64_t>(i)}));
      reference::Elements pair = testing::numbers({made[i]}, "1/0");
      pair.push_back(testing::numbers({made[i]}, "1/1")[0]);
      ASSERT_EQ(pair, expected[i]) << shown(reading);
    }
  }
}

TEST(Chains, windows_are_their_elements_stacked) {
  for (uint32_t seed = 4000; seed < 4050; ++seed) {
    Random random(seed);
    Chain chain = random.chain(3);
    const WindowOptions options = {.size = 1 + random.below(20),
                                   .shift = 1 + random.below(20),
                                   .stride = 1 + random.below(4),
                                   .drop_last = random.below(2) == 0};
    Reading reading(nodes::window(chain.node, options));
    reference::Lists expected = reference::window(chain.expected, options.size, options.shift,
                                                  options.stride, options.drop_last, 1);
    ASSERT_EQ(reading.length(), expected.size()) << shown(reading);
    auto made = reading.epoch(1, 0, kMax, 7);
    for (size_t i = 0; i < made.size(); ++i) {
      ASSERT_EQ(testing::numbers({made[i]}), expected[i]) << shown(reading);
    }
  }
}

TEST(Chains, batches_are_their_elements_stacked) {
  for (uint32_t seed = 3000; seed < 3050; ++seed) {
    Random random(seed);
    Chain chain = random.chain(3);
    const uint64_t size = 1 + random.below(100);
    const bool drop = random.below(2) == 0;
    Reading reading(nodes::batch(chain.node, size, drop));
    reference::Lists expected = reference::batch(chain.expected, size, drop, 1);
    ASSERT_EQ(reading.length(), expected.size()) << shown(reading);
    auto made = reading.epoch(1, 0, kMax, 7);
    for (size_t i = 0; i < made.size(); ++i) {
      ASSERT_EQ(testing::numbers({made[i]}), expected[i]) << shown(reading);
    }
  }
}

}  // namespace
}  // namespace penstock
