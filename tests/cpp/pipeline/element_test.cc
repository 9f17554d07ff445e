#include "penstock/pipeline/element/element.h"

#include <gtest/gtest.h>

#include <random>

#include "penstock/base/error.h"

namespace penstock {
namespace {

ElementSpec picture() {
  return ElementSpec({{"image", LeafKind::kBytes, DType::kUint8, {-1}},
                      {"label", LeafKind::kDense, DType::kInt64, {}},
                      {"boxes", LeafKind::kRagged, DType::kFloat32, {-1, 4}},
                      {"mask", LeafKind::kDense, DType::kBool, {28, 28}},
                      {"patches", LeafKind::kDense, DType::kUint8, {-1, -1, 3}}},
                     "{\"x\": 0}");
}

Code code_of(const std::vector<Leaf>& leaves) {
  try {
    ElementSpec spec(leaves);
  } catch (const Error& error) {
    return error.code();
  }
  return Code::kInternal;
}

TEST(ElementSpec, says_what_elements_are) {
  ElementSpec spec = picture();
  EXPECT_EQ(spec.to_string(),
            "{image: bytes, label: int64 (), boxes: ragged float32 (?, 4), mask: bool (28, 28), "
            "patches: uint8 (?, ?, 3)}");
  EXPECT_EQ(spec.find("mask"), 3u);
  EXPECT_EQ(spec.find("nothing"), std::nullopt);
  EXPECT_FALSE(spec.fixed());
  EXPECT_TRUE(spec.leaves()[3].fixed());
  EXPECT_FALSE(spec.leaves()[2].deep());
  EXPECT_TRUE(spec.leaves()[4].deep());
  EXPECT_EQ(spec.leaves()[2].fixed_values(), 4);
  EXPECT_EQ(spec.leaves()[3].fixed_values(), 28 * 28);
  EXPECT_EQ(spec.leaves()[4].fixed_values(), 1);
}

TEST(ElementSpec, its_bytes_are_itself) {
  ElementSpec spec = picture();
  ElementSpec read(spec.bytes());
  EXPECT_EQ(read, spec);
  EXPECT_EQ(read.to_string(), spec.to_string());
  EXPECT_EQ(read.nest(), spec.nest());
  EXPECT_EQ(ElementSpec(std::vector<Leaf>{}).leaves().size(), 0u);
}

TEST(ElementSpec, refuses_what_cannot_be) {
  using enum LeafKind;
  EXPECT_EQ(code_of({{"a", kDense, DType::kInt8, {}}, {"a", kDense, DType::kInt8, {}}}),
            Code::kInvalidArgument);
  EXPECT_EQ(code_of({{"a", kBytes, DType::kInt8, {-1}}}), Code::kInvalidArgument);
  EXPECT_EQ(code_of({{"a", kText, DType::kUint8, {7}}}), Code::kInvalidArgument);
  EXPECT_EQ(code_of({{"a", kRagged, DType::kUint8, {7}}}), Code::kInvalidArgument);
  EXPECT_EQ(code_of({{"a", kDense, DType::kUint8, {-2}}}), Code::kInvalidArgument);
  EXPECT_EQ(code_of({{"a", kDense, DType::kUint8, {1l << 40, 1l << 40}}}), Code::kInvalidArgument);
  EXPECT_EQ(code_of({{"a", kDense, static_cast<DType>(99), {}}}), Code::kInvalidArgument);
  EXPECT_EQ(code_of({{"a", kDense, DType::kUint8, Shape(33, 1)}}), Code::kInvalidArgument);
}

// Every prefix, and many changed bytes: the result is a spec or a DataLoss.
TEST(ElementSpec, bytes_that_are_none_are_data_loss) {
  ElementSpec spec = picture();
  std::vector<std::byte> bytes(spec.bytes().begin(), spec.bytes().end());
  std::minstd_rand draw(5);
  auto read = [](std::span<const std::byte> from) {
    try {
      ElementSpec made(from);
      EXPECT_TRUE(std::equal(made.bytes().begin(), made.bytes().end(), from.begin(), from.end()));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kDataLoss) << error.what();
    }
  };
  for (size_t n = 0; n < bytes.size(); ++n) read(std::span(bytes).first(n));
  for (int i = 0; i < 20000; ++i) {
    auto changed = bytes;
    for (int k = 0; k < 3; ++k) {
      changed[draw() % changed.size()] = static_cast<std::byte>(draw());
    }
    read(changed);
  }
}

}  // namespace
}  // namespace penstock
