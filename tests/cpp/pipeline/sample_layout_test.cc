#include "penstock/pipeline/engine/sample_layout.h"

#include <gtest/gtest.h>

#include "penstock/base/error.h"

namespace penstock {
namespace {

Example sample(int64_t side) {
  return {{"image", Tensor::make(DType::kUint8, {side, side})},
          {"label", Tensor::make(DType::kInt64, {})}};
}

TEST(SampleLayout, bytes_say_everything) {
  SampleLayout layout(sample(4));
  SampleLayout again(layout.bytes());
  EXPECT_EQ(again.to_string(), "{image: uint8 (4, 4), label: int64 ()}");
  EXPECT_TRUE(again.matches(sample(4)));
  EXPECT_FALSE(again.matches(sample(5)));
  EXPECT_FALSE(again.matches({{"image", Tensor::make(DType::kUint8, {4, 4})}}));
  EXPECT_FALSE(again.matches(
      {{"image", Tensor::make(DType::kInt8, {4, 4})}, {"label", Tensor::make(DType::kInt64, {})}}));
  EXPECT_FALSE(again.matches({{"label", Tensor::make(DType::kInt64, {})},
                              {"image", Tensor::make(DType::kUint8, {4, 4})}}));
  EXPECT_EQ(again.fields()[0].itemsize, 1u);
}

TEST(SampleLayout, bytes_that_are_cut_short_are_refused) {
  SampleLayout layout(sample(4));
  size_t first = 4 + 5 + 1 + 1 + 16;  // a layout of one tensor is whole
  for (size_t n = 1; n < layout.bytes().size(); ++n) {
    if (n == first) continue;
    EXPECT_THROW(SampleLayout(layout.bytes().first(n)), Error) << n;
  }
}

TEST(Example, names_keep_their_order_and_are_replaced_in_place) {
  Example example = sample(2);
  example.set("extra", Tensor::make(DType::kBool, {1}));
  example.set("image", Tensor::make(DType::kUint8, {9, 9}));
  EXPECT_EQ(example.size(), 3u);
  EXPECT_EQ(example[0].first, "image");
  EXPECT_EQ(example.at("image").dim(0), 9);
  EXPECT_EQ(example.find("nothing"), nullptr);
  try {
    example.at("nothing");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotFound);
    EXPECT_STREQ(error.what(), "Example: no 'nothing' among: image, label, extra");
  }
}

}  // namespace
}  // namespace penstock
