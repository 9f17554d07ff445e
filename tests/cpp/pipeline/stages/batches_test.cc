#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/stages/collate.h"
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
namespace reference = testing::reference;

TEST(Window, is_what_the_reference_says) {
  for (int64_t length : {0, 1, 5, 12, 30}) {
    for (uint64_t size : {1, 3, 70}) {
      for (uint64_t shift : {1, 2, 5}) {
        for (uint64_t stride : {1, 2, 4}) {
          for (bool drop : {false, true}) {
            Reading reading(nodes::window(range(length), WindowOptions{size, shift, stride, drop}));
            auto expected =
                reference::window(reference::range(0, length), size, shift, stride, drop, 0);
            auto made = reading.epoch();
            ASSERT_EQ(made.size(), expected.size()) << length << " " << reading.titles().back();
            for (size_t i = 0; i < made.size(); ++i) {
              ASSERT_EQ(numbers({made[i]}), expected[i]) << reading.titles().back();
            }
          }
        }
      }
    }
  }
}

TEST(Window, shifts_by_its_size_unless_told_otherwise_and_may_have_no_end) {
  Reading reading(nodes::window(nodes::repeat(range(5), kEndless), WindowOptions{.size = 3}));
  EXPECT_EQ(reading.length(), kEndless);
  EXPECT_EQ(numbers(reading.at({}, {1, 0})), (std::vector<int64_t>{3, 4, 0, 0, 1, 2}));
  EXPECT_EQ(reading.titles().back(), "window(3, shift=3, stride=1)");
  EXPECT_EQ(error_of([] { nodes::window(range(3), {.size = 0}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { nodes::window(range(3), {.stride = 0}); }).code(),
            Code::kInvalidArgument);
}

Node::Ref rows_of_lengths(std::vector<int64_t> lengths) {
  std::vector<Example> elements;
  int64_t next = 0;
  for (int64_t length : lengths) {
    Tensor x = Tensor::make(DType::kInt64, {length});
    for (int64_t& value : x.as_span<int64_t>()) value = next++;
    elements.push_back({{"x", x}, {"length", tensor<int64_t>({}, {length})}});
  }
  return nodes::items(elements);
}

using Field = Padding::Field;
using Fields = std::vector<Padding::Field>;

TEST(PaddedBatch, to_the_longest_of_the_batch) {
  Reading reading(nodes::padded_batch(rows_of_lengths({2, 0, 3, 1}), 3, false));
  auto made = reading.epoch();
  ASSERT_EQ(made.size(), 2u);
  EXPECT_TRUE(bit_equal(made[0]->at("x"), tensor<int64_t>({3, 3}, {0, 1, 0, 0, 0, 0, 2, 3, 4})));
  EXPECT_TRUE(bit_equal(made[0]->at("length"), tensor<int64_t>({3}, {2, 0, 3})));
  EXPECT_TRUE(bit_equal(made[1]->at("x"), tensor<int64_t>({1, 1}, {5})));
  EXPECT_EQ(Reading(nodes::padded_batch(rows_of_lengths({2, 0, 3, 1}), 3, true)).length(), 1u);
}

TEST(PaddedBatch, to_a_given_length_with_a_given_value) {
  Fields fields = {{"x", Shape{4}, int64_t{-1}}};
  Reading reading(nodes::padded_batch(rows_of_lengths({2, 4}), 2, false, fields));
  EXPECT_TRUE(
      bit_equal(reading.epoch()[0]->at("x"), tensor<int64_t>({2, 4}, {0, 1, -1, -1, 2, 3, 4, 5})));
  EXPECT_EQ(reading.titles().back(), "padded_batch(2, x: (4,) -1)");

  Reading too_long(nodes::padded_batch(rows_of_lengths({2, 5}), 2, false, fields));
  EXPECT_FALSE(too_long.epoch()[0].has_value());
  EXPECT_NE(testing::text_of(too_long.failures()[0].second)
                .find("'x' of element 1 has shape (5,), which does not fit into (4,)"),
            std::string::npos)
      << testing::text_of(too_long.failures()[0].second);
}

TEST(PaddedBatch, along_several_axes_and_of_strings) {
  auto items = nodes::items(
      std::vector<Example>{
          {{"image", tensor<float>({1, 2}, {1, 2})}, {"name", testing::text("ab")}},
          {{"image", tensor<float>({2, 1}, {3, 4})}, {"name", testing::text("")}}},
      std::make_shared<ElementSpec>(
          std::vector<Leaf>{{"image", LeafKind::kDense, DType::kFloat32, {-1, -1}},
                            {"name", LeafKind::kText, DType::kUint8, {-1}}}));
  Reading reading(nodes::padded_batch(
      items, 2, false, Fields{{"image", Shape{-1, 3}, 0.5}, {"name", std::nullopt, int64_t{'.'}}}));
  auto made = reading.epoch();
  EXPECT_TRUE(bit_equal(made[0]->at("image"),
                        tensor<float>({2, 2, 3}, {1, 2, .5, .5, .5, .5, 3, .5, .5, 4, .5, .5})));
  EXPECT_TRUE(bit_equal(made[0]->at("name"), tensor<uint8_t>({2, 2}, {'a', 'b', '.', '.'})));
}

TEST(PaddedBatch, what_cannot_be_is_said) {
  auto items = rows_of_lengths({1, 2});
  auto refused = [&](Field field) {
    Error error = error_of([&] { Reading(nodes::padded_batch(items, 2, false, Fields{field})); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return std::string(error.what());
  };
  EXPECT_NE(refused({"y"}).find("no field 'y'"), std::string::npos);
  EXPECT_NE(refused({"x", Shape{2, 2}}).find("cannot be filled up to (2, 2)"), std::string::npos);
  EXPECT_NE(refused({"x", Shape{-2}}).find("cannot be filled up"), std::string::npos);
  EXPECT_NE(refused({"x", std::nullopt, 0.5}).find("int64 and cannot be padded with 0.5"),
            std::string::npos);
  EXPECT_EQ(error_of([&] { nodes::padded_batch(items, 0, false); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] {
              nodes::padded_batch(items, 2, false, Fields{{"x"}, {"x"}});
            }).code(),
            Code::kInvalidArgument);
}

TEST(Padding, a_value_must_be_one_of_the_dtype) {
  auto fits = [](DType dtype, Padding::Value value) {
    ElementSpec spec(std::vector<Leaf>{{"x", LeafKind::kDense, dtype, {-1}}});
    try {
      (void)Padding{{{"x", std::nullopt, value}}}.columns(spec);
    } catch (const Error&) {
      return false;
    }
    return true;
  };
  EXPECT_TRUE(fits(DType::kUint8, int64_t{255}));
  EXPECT_FALSE(fits(DType::kUint8, int64_t{256}));
  EXPECT_FALSE(fits(DType::kUint8, int64_t{-1}));
  EXPECT_FALSE(fits(DType::kUint64, int64_t{-1}));
  EXPECT_TRUE(fits(DType::kBool, int64_t{1}));
  EXPECT_FALSE(fits(DType::kBool, int64_t{2}));
  EXPECT_TRUE(fits(DType::kFloat16, 0.1));
  EXPECT_TRUE(fits(DType::kBfloat16, int64_t{-1}));
  EXPECT_TRUE(fits(DType::kComplex64, int64_t{0}));
  EXPECT_FALSE(fits(DType::kComplex64, 1.0));
}

// Batches with ragged columns are not elements: they are read like a worker reads them.
TEST(RaggedBatch, stacks_what_differs_as_offsets_and_values) {
  auto lengths = std::vector<int64_t>{2, 0, 3};
  Reading reading(nodes::ragged_batch(rows_of_lengths(lengths), 3, false));
  const auto& stage = dynamic_cast<const Collated&>(reading.stage());
  EXPECT_TRUE(stage.ragged());
  EXPECT_EQ(stage.rows(0, 0), 3u);
  Scratch scratch;
  Context context{scratch};
  auto reader = stage.input()->reader(context);
  Collector rows(scratch, Collector::Lengths::kRagged, nullptr);
  rows.begin(stage.input()->spec());
  std::vector<uint64_t> positions = {0, 1, 2};
  reader->fetch({}, positions, rows.add(positions), 0);
  ASSERT_TRUE(rows.settle());
  BlockLayout layout = rows.layout(3);
  std::byte* memory = scratch.take(layout.bytes());
  rows.write(layout, memory);
  Example batch = Block(rows.spec(), 3, memory, layout.bytes(), nullptr).batch();
  EXPECT_TRUE(bit_equal(batch.at("x"), tensor<int64_t>({5}, {0, 1, 2, 3, 4})));
  EXPECT_TRUE(bit_equal(batch.at("x/offsets"), tensor<int64_t>({4}, {0, 2, 2, 5})));
  EXPECT_EQ(reading.titles().back(), "ragged_batch(3)");
}

TEST(AssertCardinality, is_known_beforehand_where_there_is_an_index) {
  EXPECT_EQ(numbers(Reading(nodes::assert_cardinality(range(3), 3)).epoch()).size(), 3u);
  Error error = error_of([] { Reading(nodes::assert_cardinality(range(3), 4)); });
  EXPECT_EQ(error.code(), Code::kDataLoss);
  EXPECT_NE(std::string(error.what()).find("elements: 3, and not 4"), std::string::npos);
  auto endless = nodes::repeat(range(3), kEndless);
  EXPECT_EQ(Reading(nodes::assert_cardinality(endless, kEndless)).length(), kEndless);
}

}  // namespace
}  // namespace penstock
