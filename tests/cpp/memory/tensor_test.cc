#include "penstock/memory/tensor.h"

#include <gtest/gtest.h>

#include <complex>

#include "penstock/base/error.h"
#include "penstock/memory/allocator.h"
#include "tensors.h"

namespace penstock {
namespace {

using testing::counting;

TEST(DType, names_and_sizes_are_numpys) {
  EXPECT_EQ(size_of(DType::kBool), 1u);
  EXPECT_EQ(size_of(DType::kBfloat16), 2u);
  EXPECT_EQ(size_of(DType::kComplex128), 16u);
  for (size_t i = 0; i < kDTypeCount; ++i) {
    auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
  }
  EXPECT_EQ(name_of(dtype_of<int64_t>()), "int64");
  EXPECT_EQ(name_of(dtype_of<const unsigned char>()), "uint8");
  EXPECT_EQ(name_of(dtype_of<std::complex<float>>()), "complex64");
  EXPECT_EQ(dtype_from_name("float8"), std::nullopt);
  EXPECT_FALSE(is_valid(static_cast<DType>(200)));
  EXPECT_EQ(size_of(static_cast<DType>(200)), 0u);
}

TEST(Tensor, new_memory_is_aligned_and_dense) {
  Tensor t = counting({2, 3, 4});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data()) % 64, 0u);
  EXPECT_EQ(t.strides(), (Shape{48, 16, 4}));
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(t.size(), 24);
  EXPECT_EQ(t.nbytes(), 96u);
  EXPECT_EQ(to_string(t.shape()), "(2, 3, 4)");
  EXPECT_EQ(to_string(Shape{5}), "(5,)");
}

TEST(Tensor, zero_dimensions_and_empty_axes_are_arrays_too) {
  Tensor scalar = counting({});
  EXPECT_EQ(scalar.size(), 1);
  EXPECT_TRUE(scalar.is_contiguous());
  EXPECT_TRUE(bit_equal(scalar, scalar.copy()));
  Tensor empty = counting({3, 0, 2});
  EXPECT_EQ(empty.size(), 0);
  EXPECT_TRUE(empty.is_contiguous());
  EXPECT_TRUE(bit_equal(empty, empty.copy()));
  EXPECT_EQ(empty.as_span<int32_t>().size(), 0u);
  EXPECT_EQ(Tensor().size(), 0);
  EXPECT_FALSE(Tensor().copy().defined());
}

TEST(Tensor, rows_share_memory_and_keep_it_alive) {
  Tensor middle;
  {
    Tensor t = counting({5, 2});
    middle = t.rows(1, 4);
    EXPECT_EQ(middle.data(), t.data() + 8);
  }
  EXPECT_EQ(middle.as_span<int32_t>().front(), 2);
  EXPECT_EQ(middle.row(2).as_span<const int32_t>()[1], 7);
  EXPECT_EQ(middle.rows(3, 3).size(), 0);
  EXPECT_THROW(middle.rows(2, 4), Error);
  EXPECT_THROW(middle.rows(-1, 2), Error);
  EXPECT_THROW(middle.rows(2, 1), Error);
  EXPECT_THROW(middle.row(3), Error);
  EXPECT_THROW(middle.row(0).row(0).row(0), Error);
}

TEST(Tensor, strided_views_are_copied_in_their_own_order) {
  Tensor t = counting({3, 4});
  Tensor transposed = Tensor::view(DType::kInt32, {4, 3}, t.data(), t.owner(), Shape{4, 16});
  EXPECT_FALSE(transposed.is_contiguous());
  EXPECT_THROW(transposed.as_span<int32_t>(), Error);
  Tensor dense = transposed.contiguous();
  auto values = dense.as_span<int32_t>();
  EXPECT_EQ((std::vector<int32_t>(values.begin(), values.end())),
            (std::vector<int32_t>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  Tensor reversed = Tensor::view(DType::kInt32, {12}, t.data() + 44, t.owner(), Shape{-4});
  EXPECT_EQ(reversed.copy().as_span<int32_t>()[0], 11);
  Tensor broadcast = Tensor::view(DType::kInt32, {3}, t.data() + 4, t.owner(), Shape{0});
  EXPECT_EQ(broadcast.copy().as_span<int32_t>()[2], 1);
  EXPECT_TRUE(bit_equal(transposed, transposed.copy()));
  EXPECT_FALSE(bit_equal(t, transposed));
  Tensor columns = Tensor::view(DType::kInt32, {3, 2}, t.data(), t.owner(), Shape{16, 4});
  EXPECT_EQ(columns.copy().as_span<int32_t>()[5], 9);
}

TEST(Tensor, spans_are_checked) {
  Tensor t = counting({4});
  EXPECT_THROW(t.as_span<float>(), Error);
  EXPECT_THROW(t.as_span<uint32_t>(), Error);
  Tensor fixed = Tensor::view(DType::kInt32, {4}, t.data(), t.owner(), {}, true);
  EXPECT_THROW(fixed.as_span<int32_t>(), Error);
  EXPECT_EQ(fixed.as_span<const int32_t>()[3], 3);
  EXPECT_FALSE(fixed.copy().read_only());
  EXPECT_EQ(fixed.bytes().size(), 16u);
  EXPECT_THROW(Tensor().bytes(), Error);
}

TEST(Tensor, wrong_shapes_are_refused) {
  EXPECT_THROW(Tensor::make(DType::kInt8, {-1}), Error);
  EXPECT_THROW(Tensor::make(DType::kInt8, {1l << 40, 1l << 40}), Error);
  EXPECT_THROW(Tensor::make(DType::kInt64, {1l << 62}), Error);
  EXPECT_THROW(Tensor::make(DType::kInt64, {0, 1l << 62, 1l << 62}), Error);
  EXPECT_THROW(Tensor::make(static_cast<DType>(99), {1}), Error);
  char one = 0;
  EXPECT_THROW(Tensor::view(DType::kInt8, {1}, nullptr, nullptr), Error);
  EXPECT_THROW(Tensor::view(DType::kInt8, {1}, &one, nullptr, {1, 1}), Error);
}

TEST(Tensor, a_view_of_a_lease_stays_inside_its_block_and_holds_it) {
  Allocator allocator(Region::create(Region::Kind::kShared, 1 << 24));
  void* block = allocator.allocate(1000);
  Lease lease = allocator.lease(block);
  allocator.release(block);
  EXPECT_THROW(Tensor::view(DType::kUint8, {1001}, lease), Error);
  EXPECT_THROW(Tensor::view(DType::kUint8, {1000}, lease, 1), Error);
  EXPECT_THROW(Tensor::view(DType::kUint8, {1}, lease, 5000), Error);
  EXPECT_THROW(Tensor::view(DType::kUint8, {10}, lease, 8, Shape{-1}), Error);
  EXPECT_THROW(Tensor::view(DType::kUint8, {2, 2}, lease, 0, Shape{999, INT64_MAX}), Error);
  EXPECT_THROW(Tensor::view(DType::kUint8, {1}, Lease()), Error);
  Tensor backwards = Tensor::view(DType::kUint8, {10}, lease, 9, Shape{-1});
  EXPECT_EQ(backwards.data(), static_cast<std::byte*>(block) + 9);
  Tensor empty = Tensor::view(DType::kFloat64, {0}, lease, 1000);
  EXPECT_EQ(empty.size(), 0);
  Tensor t = Tensor::view(DType::kFloat32, {5, 5}, lease, 900);
  lease.reset();
  backwards = empty = Tensor();
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 1u);
  t = Tensor();
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
}

}  // namespace
}  // namespace penstock
