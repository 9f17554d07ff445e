#include "penstock/memory/batch_layout.h"

#include <gtest/gtest.h>

#include "penstock/base/error.h"

namespace penstock {
namespace {

TEST(RowLayout, columns_are_aligned_dense_and_disjoint) {
  RowLayout layout(
      {Field::of(DType::kFloat32, {3, 5}), Field::of(DType::kInt64, {}), Field::opaque(7, {2})},
      10);
  const auto& fields = layout.fields();
  EXPECT_EQ(fields[0].row_bytes, 60u);
  EXPECT_EQ(fields[1].row_bytes, 8u);
  EXPECT_EQ(fields[2].row_bytes, 14u);
  EXPECT_EQ(fields[0].offset, 0u);
  EXPECT_EQ(fields[1].offset, 640u);
  EXPECT_EQ(fields[2].offset, 768u);
  EXPECT_EQ(layout.bytes(), 768u + 192u);
  std::byte* base = nullptr;
  EXPECT_EQ(layout.row(base, 2, 3) - base, 768 + 42);
  EXPECT_EQ(layout.column(base, 1) - base, 640);
  EXPECT_EQ(layout.column_shape(0, 4), (Shape{4, 3, 5}));
  EXPECT_EQ(layout.column_shape(1, 10), (Shape{10}));
}

TEST(RowLayout, nothing_is_nothing) {
  EXPECT_EQ(RowLayout({}, 10).bytes(), 0u);
  EXPECT_EQ(RowLayout({Field::of(DType::kInt8, {5})}, 0).bytes(), 0u);
  EXPECT_EQ(RowLayout({Field::of(DType::kInt8, {0})}, 8).bytes(), 0u);
}

TEST(RowLayout, what_cannot_be_is_refused) {
  EXPECT_THROW(RowLayout({Field::of(DType::kInt8, {-1})}, 1), Error);
  EXPECT_THROW(RowLayout({Field::of(DType::kInt8, {1l << 60})}, 1), Error);
  EXPECT_THROW(RowLayout({Field::of(DType::kInt8, {1l << 40})}, 1ul << 40), Error);
  EXPECT_THROW(RowLayout({Field::of(static_cast<DType>(77), {1})}, 1), Error);
}

}  // namespace
}  // namespace penstock
