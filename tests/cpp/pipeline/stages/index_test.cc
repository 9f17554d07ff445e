#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "penstock/base/bijection.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "reading.h"

namespace penstock {
namespace {

using testing::error_of;
using testing::numbers;
using testing::range;
using testing::Reading;
using testing::tensor;
using Numbers = std::vector<int64_t>;

Numbers of(const Node::Ref& node, uint64_t epoch = 0, uint64_t base = 0) {
  return numbers(Reading(node).epoch(epoch, base));
}

TEST(Take, is_the_first_elements) {
  EXPECT_EQ(of(nodes::take(range(10), 3)), (Numbers{0, 1, 2}));
  EXPECT_EQ(of(nodes::take(range(2), 3)), (Numbers{0, 1}));
  EXPECT_EQ(of(nodes::take(range(2), 0)), Numbers{});
  EXPECT_EQ(Reading(nodes::take(nodes::repeat(range(2), kEndless), 5)).length(), 5u);
  EXPECT_EQ(nodes::take(range(2), 3)->title, "take(3)");
}

TEST(Skip, is_without_the_first_elements) {
  EXPECT_EQ(of(nodes::skip(range(5), 3)), (Numbers{3, 4}));
  EXPECT_EQ(of(nodes::skip(range(5), 9)), Numbers{});
  EXPECT_EQ(Reading(nodes::skip(nodes::repeat(range(2), kEndless), 5)).length(), kEndless);
  EXPECT_EQ(numbers(Reading(nodes::skip(nodes::repeat(range(3), kEndless), 2)).epoch(0, 0, 4)),
            (Numbers{2, 0, 1, 2}));
}

TEST(Shard, is_every_nth_element) {
  EXPECT_EQ(of(nodes::shard(range(7), 0, 3)), (Numbers{0, 3, 6}));
  EXPECT_EQ(of(nodes::shard(range(7), 1, 3)), (Numbers{1, 4}));
  EXPECT_EQ(of(nodes::shard(range(7), 0, 3, Remainder::kDrop)), (Numbers{0, 3}));
  EXPECT_EQ(of(nodes::shard(range(7), 1, 3, Remainder::kPad)), (Numbers{1, 4, 0}));
  EXPECT_EQ(of(nodes::shard(range(7), 2, 3, Remainder::kPad)), (Numbers{2, 5, 1}));
  EXPECT_EQ(of(nodes::shard(range(1), 3, 4, Remainder::kPad)), (Numbers{0}));
  EXPECT_EQ(of(nodes::shard(range(0), 3, 4, Remainder::kPad)), Numbers{});
}

TEST(Shard, begins_at_the_base_of_an_epoch_that_goes_on_at_another_world_size) {
  EXPECT_EQ(of(nodes::shard(range(10), 0, 2), 0, 3), (Numbers{3, 5, 7, 9}));
  EXPECT_EQ(of(nodes::shard(range(10), 1, 2), 0, 3), (Numbers{4, 6, 8}));
  EXPECT_EQ(of(nodes::shard(range(10), 1, 2, Remainder::kPad), 0, 3), (Numbers{4, 6, 8, 0}));
  EXPECT_EQ(of(nodes::shard(range(10), 1, 2), 0, 12), Numbers{});
  auto order = nodes::shuffle(range(10), 3);
  Numbers all = of(order), left = of(nodes::shard(order, 0, 1), 0, 4);
  EXPECT_EQ(left, Numbers(all.begin() + 4, all.end())) << "what is below it is not shortened";
}

TEST(Shard, ranks_have_every_element_once) {
  for (uint32_t world : {1u, 2u, 5u}) {
    std::multiset<int64_t> seen;
    for (uint32_t rank = 0; rank < world; ++rank) {
      for (int64_t element : of(nodes::shard(range(23), rank, world))) seen.insert(element);
    }
    EXPECT_EQ(seen.size(), 23u);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 23u);
  }
}

TEST(Shard, what_cannot_be_is_said) {
  EXPECT_EQ(error_of([] { nodes::shard(range(3), 0, 0); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { nodes::shard(range(3), 2, 2); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(nodes::shard(range(3), 1, 2)->title, nodes::shard(range(3), 0, 3)->title);
}

TEST(Shuffle, is_the_seed_and_epochs_permutation_and_another_each_epoch) {
  for (int64_t length : {1, 2, 100, 1000}) {
    auto shuffled = nodes::shuffle(range(length), 7);
    Numbers first = of(shuffled), second = of(shuffled, 1);
    Bijection order(static_cast<uint64_t>(length), derive_key(7, 0, KeyUse::kOrder));
    for (int64_t i = 0; i < length; ++i) {
      EXPECT_EQ(first[i], static_cast<int64_t>(order(static_cast<uint64_t>(i))));
    }
    if (length > 2) {
      EXPECT_NE(first, second);
    }
    std::sort(second.begin(), second.end());
    EXPECT_EQ(second, of(range(length)));
    EXPECT_EQ(of(nodes::shuffle(range(length), 7, false), 5), first);
  }
}

TEST(Shuffle, a_reader_goes_from_epoch_to_epoch_and_back) {
  auto shuffled = nodes::shuffle(range(500), 7);
  Reading reading(shuffled);
  for (uint64_t epoch : {0, 3, 1, 0, 3}) {
    Numbers all = of(shuffled, epoch);
    EXPECT_EQ(numbers(reading.at({epoch, 0}, {17, 400, 3})), (Numbers{all[17], all[400], all[3]}));
    EXPECT_EQ(numbers(reading.at({epoch, 0}, {5, 6, 7})), (Numbers{all[5], all[6], all[7]}));
  }
}

TEST(Shuffle, of_what_has_no_end_is_an_error) {
  Error error = error_of([] { Reading(nodes::shuffle(nodes::repeat(range(3), kEndless), 7)); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("shuffle first"), std::string::npos);
}

TEST(ShuffleBlocks, is_a_permutation_of_every_length_and_another_each_epoch) {
  for (int64_t length : {0, 1, 2, 9, 10, 11, 99, 100, 101, 500}) {
    for (uint64_t block : {1, 10, 64, 1000}) {
      for (uint64_t window : {1, 3, 100}) {
        auto shuffled = nodes::shuffle_blocks(
            range(length), ShuffleBlocksOptions{.seed = 7, .block = block, .window = window});
        for (uint64_t epoch : {0, 1}) {
          Numbers order = of(shuffled, epoch);
          std::sort(order.begin(), order.end());
          ASSERT_EQ(order, of(range(length))) << length << " " << shuffled->title;
        }
      }
    }
  }
  auto epochs = [](bool reshuffle) {
    auto node = nodes::shuffle_blocks(
        range(500),
        ShuffleBlocksOptions{.seed = 7, .block = 10, .window = 4, .reshuffle = reshuffle});
    return std::pair(of(node, 0), of(node, 1));
  };
  EXPECT_NE(epochs(true).first, epochs(true).second);
  EXPECT_EQ(epochs(false).first, epochs(false).second);
}

TEST(ShuffleBlocks, a_window_has_the_elements_of_its_blocks) {
  constexpr uint64_t kBlock = 10, kWindow = 4;
  auto shuffled = nodes::shuffle_blocks(
      range(407), ShuffleBlocksOptions{.seed = 1, .block = kBlock, .window = kWindow});
  std::set<uint64_t> tails;
  for (uint64_t epoch = 0; epoch < 60; ++epoch) {
    Numbers order = of(shuffled, epoch);
    // The short block shortens its window, and shifts later windows.
    uint64_t begin = 0;
    while (begin < order.size()) {
      std::map<int64_t, uint64_t> blocks;
      uint64_t end = begin, elements = 0;
      while (end < order.size()) {
        const int64_t block = order[end] / static_cast<int64_t>(kBlock);
        if (blocks.count(block) == 0 && blocks.size() == kWindow) break;
        if (++blocks[block] == 1) elements += block == 40 ? 7 : kBlock;
        ++end;
      }
      ASSERT_EQ(end - begin, elements) << "epoch " << epoch << ", position " << begin;
      if (blocks.count(40) > 0) tails.insert(begin / (kBlock * kWindow));
      begin = end;
    }
  }
  EXPECT_GT(tails.size(), 6u) << "the short block stands anywhere";
}

TEST(ShuffleBlocks, a_reader_goes_where_it_is_sent) {
  auto shuffled =
      nodes::shuffle_blocks(range(407), ShuffleBlocksOptions{.seed = 1, .block = 10, .window = 4});
  Reading reading(shuffled);
  for (uint64_t epoch : {2, 0, 2}) {
    Numbers all = of(shuffled, epoch);
    EXPECT_EQ(numbers(reading.at({epoch, 0}, {400, 3, 200, 201})),
              (Numbers{all[400], all[3], all[200], all[201]}));
  }
}

// A range whose blocks end at `ends`.
class Blocked : public IndexMapped {
 public:
  Blocked(IndexedRef input, std::vector<uint64_t> ends)
      : IndexMapped(std::move(input)), ends_(std::move(ends)) {}
  uint64_t length(uint64_t base) const override { return input()->length(base); }
  uint32_t map(At&, std::span<uint64_t> positions) const override {
    return static_cast<uint32_t>(positions.size());
  }
  std::vector<uint64_t> blocks() const override { return ends_; }

 private:
  std::vector<uint64_t> ends_;
};

TEST(ShuffleBlocks, stored_blocks_have_any_lengths) {
  const std::vector<uint64_t> ends{3, 4, 100, 101, 140, 200, 407};
  Node::Ref blocked = make_node({
      .title = "blocked",
      .inputs = {range(407)},
      .build = [&ends](std::vector<Built> inputs, Builder&) -> Built {
        return {std::make_shared<Blocked>(inputs[0].indexed, ends)};
      },
  });
  auto block_of = [&ends](int64_t element) {
    return std::ranges::upper_bound(ends, static_cast<uint64_t>(element)) - ends.begin();
  };
  for (uint64_t window : {1, 2, 3, 7, 99}) {
    auto shuffled = nodes::shuffle_blocks(
        blocked, {.seed = 5, .block = ShuffleBlocksOptions::kStored, .window = window});
    EXPECT_NE(of(shuffled, 0), of(shuffled, 1));
    for (uint64_t epoch = 0; epoch < 20; ++epoch) {
      const Numbers order = of(shuffled, epoch);
      Numbers sorted = order;
      std::ranges::sort(sorted);
      ASSERT_EQ(sorted, of(range(407)));
      std::set<int64_t> blocks;
      uint64_t elements = 0;
      for (size_t i = 0; i < order.size(); ++i) {
        const auto block = static_cast<size_t>(block_of(order[i]));
        if (blocks.insert(static_cast<int64_t>(block)).second) {
          elements += ends[block] - (block == 0 ? 0 : ends[block - 1]);
        }
        ASSERT_LE(blocks.size(), window);
        if (--elements == 0) blocks.clear();  // the window is complete
      }
      EXPECT_TRUE(blocks.empty());
    }
    Reading reading(shuffled);
    const Numbers all = of(shuffled, 2);
    EXPECT_EQ(numbers(reading.at({2, 0}, {400, 3, 200, 201})),
              (Numbers{all[400], all[3], all[200], all[201]}));
  }
}

TEST(ShuffleBlocks, what_cannot_be_is_said) {
  EXPECT_EQ(error_of([] {
              Reading(nodes::shuffle_blocks(range(3), {.block = ShuffleBlocksOptions::kStored}));
            }).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { nodes::shuffle_blocks(range(3), {.block = 0}); }).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { nodes::shuffle_blocks(range(3), {.window = 0}); }).code(),
            Code::kInvalidArgument);
  auto endless = nodes::repeat(range(3), kEndless);
  EXPECT_EQ(
      error_of([&] { Reading(nodes::shuffle_blocks(endless, ShuffleBlocksOptions{})); }).code(),
      Code::kInvalidArgument);
}

TEST(Repeat, rounds_are_epochs_of_what_is_below) {
  auto shuffled = nodes::shuffle(range(30), 7);
  Numbers expected;
  for (uint64_t epoch : {6, 7, 8}) {
    Numbers round = of(shuffled, epoch);
    expected.insert(expected.end(), round.begin(), round.end());
  }
  EXPECT_EQ(of(nodes::repeat(shuffled, 3), 2), expected);
}

TEST(Concatenate, is_one_input_after_the_other) {
  auto joined = nodes::concatenate(
      std::vector<Node::Ref>{range(3), range(0), nodes::shuffle(range(100), 1), range(2)});
  Numbers expected = {0, 1, 2};
  for (int64_t element : of(nodes::shuffle(range(100), 1), 4)) expected.push_back(element);
  expected.insert(expected.end(), {0, 1});
  EXPECT_EQ(of(joined, 4), expected);
  EXPECT_EQ(numbers(Reading(joined).at({4, 0}, {104, 2, 3, 0, 103}, 9)),
            (Numbers{1, 2, expected[3], 0, 0}));
}

TEST(Concatenate, lengths_may_differ_between_inputs) {
  auto items = [](std::vector<std::vector<int64_t>> rows) {
    std::vector<Example> elements;
    for (auto& row : rows) {
      elements.push_back({{"x", tensor<int64_t>({static_cast<int64_t>(row.size())}, row)},
                          {"y", tensor<int64_t>({}, {row[0]})}});
    }
    return nodes::items(elements);
  };
  Reading reading(
      nodes::concatenate(std::vector<Node::Ref>{items({{1, 2}, {3, 4}}), items({{5, 6, 7}})}));
  EXPECT_EQ(reading.stage().spec()->to_string(), "{x: int64 (?,), y: int64 ()}");
  EXPECT_EQ(numbers(reading.epoch(), "x"), (Numbers{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(numbers(reading.at({}, {2, 0}, 3), "y"), (Numbers{5, 1}));
}

TEST(Concatenate, of_other_elements_is_an_error) {
  auto other = nodes::items(std::vector<Example>{{{"", tensor<float>({}, {1})}}});
  Error error = error_of([&] {
    Reading(nodes::concatenate(std::vector<Node::Ref>{range(3), other}));
  });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("input 1 has {: float32 ()}"), std::string::npos)
      << error.what();
  EXPECT_EQ(error_of([] { nodes::concatenate(std::vector<Node::Ref>{}); }).code(),
            Code::kInvalidArgument);
}

TEST(Zip, is_as_long_as_the_shortest) {
  auto squares = nodes::items(std::vector<Example>{
      {{"n", tensor<int64_t>({}, {0})}, {"square", tensor<int64_t>({}, {0})}},
      {{"n", tensor<int64_t>({}, {1})}, {"square", tensor<int64_t>({}, {1})}},
      {{"n", tensor<int64_t>({}, {2})}, {"square", tensor<int64_t>({}, {4})}},
  });
  std::vector<Node::Ref> inputs = {squares, nodes::shuffle(range(50), 1)};
  Reading tuple(nodes::zip(inputs));
  EXPECT_EQ(tuple.length(), 3u);
  EXPECT_EQ(tuple.stage().spec()->to_string(), "{0/n: int64 (), 0/square: int64 (), 1: int64 ()}");
  EXPECT_EQ(tuple.stage().spec()->nest(), "({1:n.6:square.}.)");
  auto made = tuple.epoch();
  EXPECT_EQ(numbers(made, "0/square"), (Numbers{0, 1, 4}));
  Numbers shuffled = of(inputs[1]);
  shuffled.resize(3);
  EXPECT_EQ(numbers(made, "1"), shuffled);

  Reading dict(nodes::zip(inputs, std::vector<std::string>{"table", "order"}));
  EXPECT_EQ(dict.stage().spec()->nest(), "{5:table{1:n.6:square.}5:order.}");
  EXPECT_EQ(numbers(dict.at({}, {2, 1}, 11), "table/n"), (Numbers{2, 1}));

  Reading flat(
      nodes::zip(std::vector<Node::Ref>{range(2), range(3)}, std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(flat.stage().spec()->nest(), "");
  EXPECT_EQ(flat.stage().spec()->to_string(), "{a: int64 (), b: int64 ()}");
}

TEST(Zip, what_cannot_be_is_said) {
  using Names = std::vector<std::string>;
  std::vector<Node::Ref> two = {range(2), range(2)};
  EXPECT_EQ(error_of([&] { nodes::zip(std::vector<Node::Ref>{}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { nodes::zip(two, Names{"a"}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { nodes::zip(two, Names{"a", "a"}); }).code(), Code::kInvalidArgument);
}

TEST(Enumerate, numbers_the_elements) {
  Reading reading(nodes::enumerate(nodes::shuffle(range(100), 5), 10));
  auto made = reading.epoch(2);
  Numbers expected;
  for (int64_t i = 0; i < 100; ++i) expected.push_back(10 + i);
  EXPECT_EQ(numbers(made, "0"), expected);
  EXPECT_EQ(numbers(made, "1"), of(nodes::shuffle(range(100), 5), 2));
  EXPECT_EQ(reading.stage().spec()->nest(), "(..)");
  EXPECT_EQ(reading.titles().back(), "enumerate(start=10)");
}

}  // namespace
}  // namespace penstock
