#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "reading.h"
#include "reference.h"

namespace penstock {
namespace {

using testing::error_of;
using testing::numbers;
using testing::range;
using testing::Reading;
using testing::tensor;
using Numbers = std::vector<int64_t>;
namespace reference = testing::reference;

// `number`, so many times.
Node::Ref many(int64_t number, uint64_t times) {
  return nodes::repeat(nodes::range(number, number + 1, 1), times);
}

TEST(Interleave, is_the_example_of_the_documentation) {
  std::vector<Node::Ref> inputs;
  for (int64_t i = 1; i < 6; ++i) inputs.push_back(many(i, 6));
  EXPECT_EQ(numbers(Reading(nodes::interleave(inputs, 2, 4)).epoch()),
            (Numbers{1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3,
                     3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5}));
}

TEST(Interleave, is_what_the_reference_says) {
  uint32_t state = 1;
  auto draw = [&](uint32_t n) {
    state = state * 1664525 + 1013904223;
    return (state >> 16) % n;
  };
  for (int chain = 0; chain < 300; ++chain) {
    std::vector<Node::Ref> inputs;
    std::vector<reference::Dataset> expected;
    const uint32_t count = 1 + draw(9), longest = 1 + draw(40);
    for (uint32_t i = 0; i < count; ++i) {
      const int64_t begin = 1000 * i, end = begin + draw(longest);
      inputs.push_back(nodes::range(begin, end, 1));
      expected.push_back(reference::range(begin, end));
    }
    const uint64_t cycle = 1 + draw(6), block = 1 + draw(7);
    Reading reading(nodes::interleave(inputs, cycle, block));
    ASSERT_EQ(numbers(reading.epoch(0, 0, 1000, 1 + draw(64))),
              reference::interleave(expected, cycle, block, 0))
        << reading.titles().back();
  }
}

TEST(Interleave, any_position_of_long_inputs_without_going_there) {
  std::vector<Node::Ref> inputs;
  for (int64_t i = 0; i < 4; ++i) {
    inputs.push_back(nodes::range(i << 40, (i << 40) + (int64_t{1} << 32) * (i + 1), 1));
  }
  Reading reading(nodes::interleave(inputs, 4, 16));
  EXPECT_EQ(reading.length(), uint64_t{10} << 32);
  EXPECT_EQ(
      numbers(reading.at({}, {64 * 1000 + 17, 5, (uint64_t{10} << 32) - 1})),
      (Numbers{(int64_t{1} << 40) + 16000 + 1, 5, (int64_t{3} << 40) + (int64_t{4} << 32) - 1}));
}

TEST(Interleave, inputs_have_epochs_and_may_differ_in_length) {
  auto shuffled = nodes::shuffle(range(10), 3);
  Reading reading(nodes::interleave(std::vector<Node::Ref>{shuffled, range(10)}, 2, 1));
  Numbers made = numbers(reading.epoch(4)), order = numbers(Reading(shuffled).epoch(4));
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(made[2 * i], order[i]);
    EXPECT_EQ(made[2 * i + 1], static_cast<int64_t>(i));
  }
  auto of = [](Shape shape) {
    return nodes::items(std::vector<Example>(3, {{"x", Tensor::make(DType::kUint8, shape)}}));
  };
  Reading uneven(nodes::interleave(std::vector<Node::Ref>{of({2}), of({5})}, 2, 1));
  EXPECT_EQ(uneven.stage().spec()->to_string(), "{x: uint8 (?,)}");
  EXPECT_EQ(uneven.at({}, {0, 1, 2})[1]->at("x").shape(), (Shape{5}));
}

TEST(Interleave, what_cannot_be_is_said) {
  std::vector<Node::Ref> endless = {range(3), nodes::repeat(range(3), kEndless)};
  Error error = error_of([&] { Reading(nodes::interleave(endless, 2, 1)); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("input 1 has no end"), std::string::npos);
  std::vector<Node::Ref> one = {range(3)};
  EXPECT_EQ(error_of([&] { nodes::interleave(one, 0, 1); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { nodes::interleave(one, 1, 0); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { nodes::interleave({}, 1, 1); }).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace penstock
