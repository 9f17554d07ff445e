#include <cmath>
#include <limits>
#include <numeric>

#include "penstock/base/half.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/transformations/operations.h"
#include "penstock/pipeline/transformations/transformations.h"
#include "reading.h"

namespace penstock {
namespace {

using testing::error_of;
using testing::Reading;
using testing::tensor;

template <class T>
Node::Ref column(std::vector<T> values) {
  const auto length = static_cast<int64_t>(values.size());
  return nodes::arrays(Example{{"x", tensor<T>({length}, std::move(values))}});
}

template <class T>
std::vector<T> values(const std::vector<testing::Made>& made, std::string_view leaf = "x") {
  std::vector<T> all;
  for (const auto& element : made) {
    if (!element) continue;
    auto span = element->at(leaf).as_span<const T>();
    all.insert(all.end(), span.begin(), span.end());
  }
  return all;
}

template <class To, class From>
std::vector<To> cast(std::vector<From> from) {
  return values<To>(Reading(nodes::map(column<From>(from), cast(dtype_of<To>()))).epoch());
}

TEST(Half, float16_is_exact_both_ways) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = float16_to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(float16_to_float(float_to_float16(value))));
    } else {
      ASSERT_EQ(float_to_float16(value), half) << bits;
    }
#ifdef __FLT16_MAX__
    _Float16 native;
    std::memcpy(&native, &half, 2);
    ASSERT_TRUE(std::isnan(value) || value == static_cast<float>(native)) << bits;
#endif
  }
}

TEST(Half, rounds_to_the_nearest_and_ties_to_even) {
  EXPECT_EQ(float_to_float16(65504.0f), 0x7BFF);
  EXPECT_EQ(float_to_float16(65519.99f), 0x7BFF);
  EXPECT_EQ(float_to_float16(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_float16(1.0f + 0x1p-11f), 0x3C00) << "a tie";
  EXPECT_EQ(float_to_float16(1.0f + 3 * 0x1p-11f), 0x3C02) << "a tie";
  EXPECT_EQ(float_to_float16(0x1p-25f), 0);
  EXPECT_EQ(float_to_float16(-0x1.8p-25f), 0x8001);
  EXPECT_EQ(float_to_bfloat16(1.0f + 0x1p-8f), 0x3F80);
  EXPECT_EQ(float_to_bfloat16(1.0f + 3 * 0x1p-8f), 0x3F82);
  EXPECT_TRUE(std::isnan(bfloat16_to_float(float_to_bfloat16(NAN))));
#ifdef __FLT16_MAX__
  uint32_t bits = 1;
  for (int i = 0; i < 1000000; ++i) {
    bits = bits * 1664525 + 1013904223;
    const float value = std::bit_cast<float>(bits);
    if (std::isnan(value)) continue;
    const auto native = static_cast<_Float16>(value);
    uint16_t half;
    std::memcpy(&half, &native, 2);
    ASSERT_EQ(float_to_float16(value), half) << value;
  }
#endif
}

TEST(Cast, keeps_values_that_fit) {
  EXPECT_EQ(cast<float>(std::vector<uint8_t>{0, 7, 255}), (std::vector<float>{0, 7, 255}));
  EXPECT_EQ(cast<int32_t>(std::vector<int64_t>{-5, 1 << 30}), (std::vector<int32_t>{-5, 1 << 30}));
  EXPECT_EQ(cast<double>(std::vector<float>{0.5f}), (std::vector<double>{0.5}));
  EXPECT_EQ(cast<int64_t>(std::vector<double>{-2.9, 2.9, 1e15}),
            (std::vector<int64_t>{-2, 2, 1000000000000000}));
}

TEST(Cast, what_does_not_fit_is_said_in_the_header) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(cast<uint8_t>(std::vector<int32_t>{-1, 256, 300}), (std::vector<uint8_t>{255, 0, 44}));
  EXPECT_EQ(cast<uint8_t>(std::vector<double>{-3, -0.5, 255.9, 256, kInfinity, NAN}),
            (std::vector<uint8_t>{0, 0, 255, 255, 255, 0}));
  EXPECT_EQ(cast<int64_t>(std::vector<float>{0x1p63f, -0x1p63f, -0x1p64f, NAN}),
            (std::vector<int64_t>{INT64_MAX, INT64_MIN, INT64_MIN, 0}));
  EXPECT_EQ(cast<int32_t>(std::vector<float>{2147483520.0f, 2147483648.0f, -2147483648.0f}),
            (std::vector<int32_t>{2147483520, INT32_MAX, INT32_MIN}));
  EXPECT_EQ(cast<uint64_t>(std::vector<double>{0x1.8p63, 0x1p64, -1}),
            (std::vector<uint64_t>{uint64_t{3} << 62, UINT64_MAX, 0}));
  EXPECT_EQ(cast<uint8_t>(std::vector<double>{-kInfinity}), (std::vector<uint8_t>{0}));
}

TEST(Cast, truth_is_everything_but_zero) {
  Reading reading(nodes::map(column<float>({0, 0.5f, NAN, -0.0f}), cast(DType::kBool)));
  std::vector<int> truths;
  for (const auto& made : reading.epoch()) {
    truths.push_back(std::to_integer<int>(*made->at("x").data()));
  }
  EXPECT_EQ(truths, (std::vector<int>{0, 1, 1, 0}));
}

TEST(Cast, numbers_of_16_bits_go_there_and_back) {
  for (DType half : {DType::kFloat16, DType::kBfloat16}) {
    auto there = nodes::map(column<float>({0, 1.5f, -2, 256}), cast(half));
    Reading reading(nodes::map(there, cast(DType::kFloat64)));
    EXPECT_EQ(values<double>(reading.epoch()), (std::vector<double>{0, 1.5, -2, 256}));
  }
}

TEST(Cast, only_named_fields_and_whatever_their_lengths) {
  std::vector<Example> elements;
  for (int64_t n : {3, 1, 0}) {
    elements.push_back({{"x", Tensor::make(DType::kInt64, {n})},
                        {"y", tensor<int64_t>({}, {n})},
                        {"name", testing::text("n")}});
    auto span = elements.back().at("x").as_span<int64_t>();
    std::iota(span.begin(), span.end(), n);
  }
  auto spec = std::make_shared<ElementSpec>(
      std::vector<Leaf>{{"x", LeafKind::kRagged, DType::kInt64, {-1}},
                        {"y", LeafKind::kDense, DType::kInt64, {}},
                        {"name", LeafKind::kBytes, DType::kUint8, {-1}}});
  auto items = nodes::items(elements, spec);
  Reading reading(nodes::map(items, cast(DType::kFloat32, std::vector<std::string>{"x"})));
  EXPECT_EQ(reading.stage().spec()->to_string(),
            "{x: ragged float32 (?,), y: int64 (), name: bytes}");
  auto made = reading.at({}, {2, 0, 1}, 5);
  EXPECT_EQ(values<float>(made), (std::vector<float>{3, 4, 5, 1}));
  EXPECT_EQ(testing::numbers(made, "y"), (std::vector<int64_t>{0, 3, 1}));
  EXPECT_EQ(reading.titles().back(), "map(cast(float32, x))");
  Reading all(nodes::map(items, cast(DType::kFloat32)));
  EXPECT_EQ(all.stage().spec()->to_string(),
            "{x: ragged float32 (?,), y: float32 (), name: bytes}");
}

TEST(Cast, what_cannot_be_is_said) {
  using Names = std::vector<std::string>;
  auto bytes = nodes::items(std::vector<Example>{{{"x", testing::text("a")}}},
                            std::make_shared<ElementSpec>(
                                std::vector<Leaf>{{"x", LeafKind::kBytes, DType::kUint8, {-1}}}));
  auto refused = [](const Node::Ref& node) {
    Error error = error_of([&] { Reading reading(node); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return std::string(error.what());
  };
  EXPECT_NE(refused(nodes::map(bytes, cast(DType::kInt8, Names{"x"}))).find("'x' is a string"),
            std::string::npos);
  EXPECT_NE(refused(nodes::map(bytes, cast(DType::kInt8, Names{"y"}))).find("no field 'y' in {x: "),
            std::string::npos);
  refused(nodes::map(bytes, cast(DType::kInt8)));
  EXPECT_EQ(error_of([] { cast(DType::kComplex64); }).code(), Code::kInvalidArgument);
}

TEST(Normalize, is_mean_and_deviation_in_float32) {
  Tensor image = Tensor::make(DType::kUint8, {10, 29, 27});
  for (int64_t i = 0; i < image.size(); ++i) image.as_span<uint8_t>()[i] = static_cast<uint8_t>(i);
  auto source = nodes::arrays(
      Example{{"image", image}, {"label", tensor<int32_t>({10}, std::vector<int32_t>(10, 3))}});
  Reading reading(
      nodes::map(source, normalize(std::vector<float>{33.3f}, std::vector<float>{7.7f})));
  EXPECT_EQ(reading.stage().spec()->to_string(), "{image: float32 (29, 27), label: int32 ()}");
  auto made = reading.epoch();
  for (int64_t i = 0; i < 10; ++i) {
    auto out = made[i]->at("image").as_span<const float>();
    for (int64_t j = 0; j < 783; ++j) {
      ASSERT_EQ(out[j], (static_cast<float>(image.as_span<uint8_t>()[i * 783 + j]) - 33.3f) / 7.7f);
    }
    EXPECT_EQ(made[i]->at("label").as_span<const int32_t>()[0], 3);
  }
}

TEST(Normalize, each_channel_by_its_own_numbers) {
  for (int64_t channels : {2, 3, 300}) {
    Tensor image = Tensor::make(DType::kFloat32, {3, 11, channels});
    std::vector<float> mean, std;
    for (int64_t c = 0; c < channels; ++c) {
      mean.push_back(static_cast<float>(c) * 0.1f);
      std.push_back(1 + static_cast<float>(c) * 0.3f);
    }
    auto in = image.as_span<float>();
    for (size_t i = 0; i < in.size(); ++i) in[i] = std::sin(static_cast<float>(i));
    Reading reading(nodes::map(nodes::arrays(Example{{"x", image}}), normalize(mean, std)));
    auto out = values<float>(reading.epoch());
    ASSERT_EQ(out.size(), in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      const size_t c = i % static_cast<size_t>(channels);
      ASSERT_EQ(out[i], (in[i] - mean[c]) / std[c]) << i;
    }
  }
}

TEST(Normalize, images_of_any_size_and_one_with_other_channels_fails) {
  std::vector<Example> elements;
  for (int64_t n : {2, 3}) {
    elements.push_back({{"x", Tensor::make(DType::kUint8, {n, n, n == 3 ? 4 : 3})}});
    std::memset(elements.back().at("x").data(), 6, elements.back().at("x").nbytes());
  }
  Reading reading(nodes::map(nodes::items(elements),
                             normalize(std::vector<float>{1, 2, 3}, std::vector<float>{1, 1, 3})));
  EXPECT_EQ(reading.stage().spec()->to_string(), "{x: float32 (?, ?, ?)}");
  auto made = reading.epoch();
  EXPECT_EQ(made[0]->at("x").as_span<const float>()[5], 1.0f);
  EXPECT_FALSE(made[1].has_value());
  ASSERT_EQ(reading.failures().size(), 1u);
  const auto& [row, failure] = reading.failures()[0];
  EXPECT_EQ(failure.stage, "map(normalize((1, 2, 3), (1, 1, 3)))");
  EXPECT_EQ(failure.position, 1u);
  EXPECT_NE(testing::text_of(failure).find("'x' has 4 channels"), std::string::npos);
}

TEST(Normalize, what_cannot_be_is_said) {
  using Floats = std::vector<float>;
  EXPECT_EQ(error_of([] { normalize(Floats{}, Floats{}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { normalize(Floats{1}, Floats{0}); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { normalize(Floats{1}, Floats{1, 2}); }).code(), Code::kInvalidArgument);
  auto source = nodes::arrays(Example{{"x", Tensor::make(DType::kUint8, {2, 4})}});
  EXPECT_EQ(error_of([&] {
              Reading(nodes::map(source, normalize(Floats{1, 2, 3}, Floats{1, 2, 3})));
            }).code(),
            Code::kInvalidArgument);
}

TEST(DecodeRaw, bytes_are_an_arrays_values) {
  std::vector<Example> elements;
  for (int32_t i = 0; i < 4; ++i) {
    std::vector<int32_t> six = {i, i + 1, i + 2, i + 3, i + 4, i + 5};
    if (i == 2) six.pop_back();
    elements.push_back({{"x", testing::text({reinterpret_cast<const char*>(six.data()),
                                             six.size() * sizeof(int32_t)})}});
  }
  auto spec = std::make_shared<ElementSpec>(
      std::vector<Leaf>{{"x", LeafKind::kBytes, DType::kUint8, {-1}}});
  Reading reading(
      nodes::map(nodes::items(elements, spec), decode_raw("x", DType::kInt32, Shape{2, 3})));
  EXPECT_EQ(reading.stage().spec()->to_string(), "{x: int32 (2, 3)}");
  auto made = reading.epoch();
  EXPECT_TRUE(bit_equal(made[3]->at("x"), tensor<int32_t>({2, 3}, {3, 4, 5, 6, 7, 8})));
  EXPECT_FALSE(made[2].has_value());
  EXPECT_NE(
      testing::text_of(reading.failures()[0].second).find("'x' has 20 bytes; int32 (2, 3) has 24"),
      std::string::npos)
      << testing::text_of(reading.failures()[0].second);
}

TEST(DecodeRaw, what_cannot_be_is_said) {
  auto numbers = column<int32_t>({1, 2});
  EXPECT_EQ(error_of([&] {
              Reading(nodes::map(numbers, decode_raw("x", DType::kInt32, Shape{})));
            }).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { decode_raw("x", DType::kInt32, Shape{-1}); }).code(),
            Code::kInvalidArgument);
  auto short_bytes = nodes::arrays(Example{{"x", Tensor::make(DType::kUint8, {2, 4})}});
  EXPECT_EQ(error_of([&] {
              Reading(nodes::map(short_bytes, decode_raw("x", DType::kInt32, Shape{2})));
            }).code(),
            Code::kInvalidArgument);
}

TEST(Ops, several_in_a_row_under_a_batch) {
  Tensor image = Tensor::make(DType::kUint8, {100, 4});
  for (int64_t i = 0; i < 400; ++i) image.as_span<uint8_t>()[i] = static_cast<uint8_t>(i / 4);
  auto source = nodes::shuffle(nodes::arrays(Example{{"x", image}}), 3);
  auto normal = nodes::map(source, normalize(std::vector<float>{1}, std::vector<float>{2}));
  auto back = nodes::map(normal, cast(DType::kInt64));
  Reading reading(nodes::batch(back, 70, false));
  auto expected = values<uint8_t>(Reading(source).epoch());
  auto made = testing::numbers(reading.epoch(), "x");
  ASSERT_EQ(made.size(), expected.size());
  for (size_t i = 0; i < made.size(); ++i) {
    ASSERT_EQ(made[i], static_cast<int64_t>((static_cast<float>(expected[i]) - 1) / 2));
  }
}

}  // namespace
}  // namespace penstock
