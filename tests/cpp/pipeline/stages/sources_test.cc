#include "penstock/pipeline/sources/sources.h"

#include <numeric>

#include "reading.h"

namespace penstock {
namespace {

using testing::error_of;
using testing::numbers;
using testing::Reading;
using testing::tensor;

Tensor counted(Shape shape) {
  Tensor made = Tensor::make(DType::kInt32, std::move(shape));
  auto values = made.as_span<int32_t>();
  std::iota(values.begin(), values.end(), 0);
  return made;
}

TEST(Arrays, an_element_is_a_row_of_each) {
  Tensor image = counted({5, 2, 3});
  Tensor label = tensor<int64_t>({5}, {0, 10, 20, 30, 40});
  Reading reading(nodes::arrays(Example{{"image", image}, {"label", label}}));
  EXPECT_EQ(reading.length(), 5u);
  EXPECT_EQ(reading.stage().spec()->to_string(), "{image: int32 (2, 3), label: int64 ()}");
  auto made = reading.at({}, {3, 0, 3, 4}, 7);
  EXPECT_EQ(numbers(made, "label"), (std::vector<int64_t>{30, 0, 30, 40}));
  EXPECT_TRUE(bit_equal(made[0]->at("image"), image.row(3)));
  EXPECT_TRUE(bit_equal(made[3]->at("image"), image.row(4)));
}

TEST(Arrays, free_columns_are_views_of_the_arrays) {
  Tensor image = counted({4, 3});
  Reading reading(nodes::arrays(Example{{"image", image}}));
  Scratch scratch;
  Context context{scratch};
  auto reader = reading.stage().reader(context);
  Chunk chunk(scratch);
  chunk.reset(reading.stage().spec(), 2);
  reader->fetch({}, std::vector<uint64_t>{2, 1}, chunk, 0);
  EXPECT_EQ(chunk.at(0, 0), image.row(2).data());
  EXPECT_EQ(chunk.at(0, 1), image.row(1).data());
  EXPECT_EQ(scratch.bytes(), 0u);
}

TEST(Arrays, strided_and_read_only_ones_too) {
  Tensor base = counted({6, 4});
  auto step = base.strides()[0];
  auto of = [&](Shape shape, Shape strides, std::byte* first) {
    return Tensor::view(DType::kInt32, std::move(shape), first, base.owner(), std::move(strides),
                        true);
  };
  Example columns = {{"every_second", of({3, 4}, {2 * step, 4}, base.data())},
                     {"backwards", of({3, 4}, {-step, 4}, base.data() + 4 * step)},
                     {"one_row", of({3, 4}, {0, 4}, base.data() + step)},
                     {"column", of({3, 2}, {step, 8}, base.data())},
                     {"mirrored", of({3, 4}, {-step, -4}, base.data() + 5 * step + 12)}};
  Reading reading(nodes::arrays(columns));
  auto made = reading.epoch();
  ASSERT_EQ(made.size(), 3u);
  for (int64_t i = 0; i < 3; ++i) {
    for (const auto& [name, column] : columns) {
      EXPECT_TRUE(bit_equal(made[i]->at(name), column.row(i).copy())) << name << " " << i;
    }
  }
}

TEST(Arrays, may_be_empty_or_have_rows_without_bytes) {
  EXPECT_EQ(Reading(nodes::arrays(Example{{"x", counted({0, 3})}})).length(), 0u);
  Reading reading(
      nodes::arrays(Example{{"nothing", counted({2, 0})}, {"x", tensor<int64_t>({2}, {7, 8})}}));
  auto made = reading.epoch();
  EXPECT_EQ(numbers(made, "x"), (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(made[1]->at("nothing").shape(), (Shape{0}));
}

TEST(Arrays, what_cannot_be_is_said) {
  auto refused = [](Example columns) {
    Error error = error_of([&] { nodes::arrays(std::move(columns)); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return std::string(error.what());
  };
  refused({});
  EXPECT_NE(refused({{"x", counted({})}}).find("'x' has no axes"), std::string::npos);
  EXPECT_NE(refused({{"x", counted({3})}, {"y", counted({2})}}).find("'y' has 2 rows, 'x' 3"),
            std::string::npos);
}

TEST(Items, give_elements_that_are_there) {
  std::vector<Example> elements;
  for (int64_t i = 0; i < 5; ++i) {
    elements.push_back({{"", tensor<int64_t>({}, {i * i})}});
  }
  Reading reading(nodes::items(elements));
  EXPECT_EQ(numbers(reading.epoch()), (std::vector<int64_t>{0, 1, 4, 9, 16}));
  EXPECT_EQ(numbers(reading.at({}, {4, 2}, 60)), (std::vector<int64_t>{16, 4}));
}

TEST(Items, lengths_that_differ_are_found) {
  Reading reading(nodes::items(std::vector<Example>{
      {{"x", counted({2, 3})}, {"y", counted({4})}},
      {{"x", counted({1, 3})}, {"y", counted({4})}},
  }));
  EXPECT_EQ(reading.stage().spec()->to_string(), "{x: int32 (?, 3), y: int32 (4,)}");
  auto made = reading.epoch();
  EXPECT_TRUE(bit_equal(made[0]->at("x"), counted({2, 3})));
  EXPECT_TRUE(bit_equal(made[1]->at("x"), counted({1, 3})));
  EXPECT_TRUE(bit_equal(made[1]->at("y"), counted({4})));
}

TEST(Items, strings_are_bytes_and_said_to_be_strings) {
  auto spec = std::make_shared<ElementSpec>(
      std::vector<Leaf>{{"name", LeafKind::kText, DType::kUint8, {-1}}}, ".");
  std::vector<Example> elements = {{{"name", testing::text("penstock")}},
                                   {{"name", testing::text("")}}};
  Reading reading(nodes::items(elements, spec));
  EXPECT_EQ(*reading.stage().spec(), *spec);
  auto made = reading.epoch();
  EXPECT_TRUE(bit_equal(made[0]->at("name"), testing::text("penstock")));
  EXPECT_EQ(made[1]->at("name").size(), 0);
}

TEST(Items, that_are_not_alike_are_an_error_that_names_two) {
  std::vector<Example> elements = {
      {{"x", counted({2})}}, {{"x", counted({3})}}, {{"y", counted({2})}}};
  Error error = error_of([&] { nodes::items(elements); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_NE(std::string(error.what()).find("element 2 is {y: int32 (2,)}"), std::string::npos)
      << error.what();
  EXPECT_EQ(Reading(nodes::items(std::vector<Example>{})).length(), 0u);
}

}  // namespace
}  // namespace penstock
