#include "penstock/memory/dlpack.h"

#include <gtest/gtest.h>

#include <thread>

#include "penstock/base/error.h"
#include "penstock/memory/allocator.h"
#include "tensors.h"

namespace penstock {
namespace {

using testing::counting;

TEST(Dlpack, every_dtype_goes_out_and_comes_in_without_a_copy) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    auto dtype = static_cast<DType>(i);
    Tensor t = Tensor::make(dtype, {2, 3});
    std::fill_n(t.data(), t.nbytes(), std::byte{1});
    Tensor versioned = from_dlpack(to_dlpack_versioned(t));
    Tensor plain = from_dlpack(to_dlpack(t));
    EXPECT_EQ(versioned.data(), t.data());
    EXPECT_TRUE(bit_equal(versioned, t)) << name_of(dtype);
    EXPECT_TRUE(bit_equal(plain, t)) << name_of(dtype);
    EXPECT_FALSE(versioned.read_only() || plain.read_only());
  }
}

TEST(Dlpack, shapes_and_strides_survive) {
  Tensor t = counting({4, 6});
  Tensor transposed = Tensor::view(DType::kInt32, {6, 4}, t.data(), t.owner(), Shape{4, 24});
  Tensor back = from_dlpack(to_dlpack_versioned(transposed));
  EXPECT_EQ(back.strides(), transposed.strides());
  EXPECT_TRUE(bit_equal(back, transposed));
  Tensor scalar = from_dlpack(to_dlpack(counting({})));
  EXPECT_EQ(scalar.ndim(), 0u);
  Tensor empty = from_dlpack(to_dlpack(counting({0, 3})));
  EXPECT_EQ(empty.shape(), (Shape{0, 3}));
  Tensor reversed = Tensor::view(DType::kInt32, {24}, t.data() + 92, t.owner(), Shape{-4});
  EXPECT_TRUE(bit_equal(from_dlpack(to_dlpack(reversed)), reversed));
}

TEST(Dlpack, read_only_is_said_or_refused) {
  Tensor t = counting({3});
  Tensor fixed = Tensor::view(DType::kInt32, {3}, t.data(), t.owner(), {}, true);
  auto* managed = to_dlpack_versioned(fixed);
  EXPECT_EQ(managed->flags & dlpack::kReadOnly, dlpack::kReadOnly);
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_TRUE(from_dlpack(managed).read_only());
  EXPECT_THROW(to_dlpack(fixed), Error);
  EXPECT_TRUE(from_dlpack(to_dlpack(t), true).read_only());
}

TEST(Dlpack, what_cannot_be_expressed_is_refused) {
  Tensor t = counting({4});
  Tensor odd = Tensor::view(DType::kInt16, {3}, t.data(), t.owner(), Shape{3});
  EXPECT_THROW(to_dlpack_versioned(odd), Error);
  EXPECT_THROW(to_dlpack_versioned(Tensor()), Error);
}

TEST(Dlpack, the_deleter_drops_the_lease_on_any_thread) {
  Allocator allocator(Region::create(Region::Kind::kShared, 1 << 24));
  void* block = allocator.allocate(1000);
  auto* managed = to_dlpack_versioned(Tensor::view(DType::kUint8, {1000}, allocator.lease(block)));
  allocator.release(block);
  EXPECT_EQ(Lease::outstanding(), 1u);
  std::thread([managed] { managed->deleter(managed); }).join();
  EXPECT_EQ(Lease::outstanding(), 0u);
  allocator.collect();
  EXPECT_EQ(allocator.stats().live_blocks, 0u);
}

// A producer that behaves like another framework.
struct Producer {
  int64_t shape[2] = {2, 2};
  int64_t strides[2] = {2, 1};
  alignas(64) int16_t values[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  int deleted = 0;
  dlpack::ManagedTensorVersioned managed{};

  Producer() {
    managed.version = {1, 3};  // a newer minor version is the same layout
    managed.manager_ctx = this;
    managed.deleter = [](dlpack::ManagedTensorVersioned* self) {
      ++static_cast<Producer*>(self->manager_ctx)->deleted;
    };
    managed.tensor = {values, {dlpack::kCpu, 0}, 2, {dlpack::kInt, 16, 1}, shape, nullptr, 4};
  }
};

TEST(Dlpack, a_producers_memory_lives_until_the_last_tensor_of_it_dies) {
  Producer producer;
  {
    Tensor rows;
    {
      Tensor t = from_dlpack(&producer.managed);
      EXPECT_EQ(t.row(0).as_span<int16_t>()[0], 2) << "byte_offset counts";
      rows = t.rows(1, 2);
    }
    EXPECT_EQ(producer.deleted, 0);
    EXPECT_EQ(rows.as_span<int16_t>()[1], 5);
  }
  EXPECT_EQ(producer.deleted, 1);
  producer.managed.deleter = nullptr;  // allowed: nothing to delete
  EXPECT_EQ(from_dlpack(&producer.managed).size(), 4);
}

TEST(Dlpack, what_is_refused_stays_the_producers) {
  auto refused = [](auto change) {
    Producer producer;
    change(producer.managed);
    try {
      from_dlpack(&producer.managed);
    } catch (const Error& error) {
      return error.code() == Code::kInvalidArgument && producer.deleted == 0;
    }
    return false;
  };
  using Managed = dlpack::ManagedTensorVersioned;
  EXPECT_TRUE(refused([](Managed& m) { m.tensor.device = {dlpack::kCuda, 0}; }));
  EXPECT_TRUE(refused([](Managed& m) { m.tensor.dtype = {dlpack::kInt, 4, 1}; }));
  EXPECT_TRUE(refused([](Managed& m) { m.tensor.dtype = {dlpack::kFloat, 32, 4}; }));
  EXPECT_TRUE(refused([](Managed& m) { m.tensor.dtype = {dlpack::kOpaqueHandle, 64, 1}; }));
  EXPECT_TRUE(refused([](Managed& m) { m.tensor.dtype = {7, 8, 1}; })) << "a float8";
  EXPECT_TRUE(refused([](Managed& m) { m.version.major = 2; }));
  EXPECT_TRUE(refused([](Managed& m) { m.flags = dlpack::kSubbytePadded; }));
  EXPECT_TRUE(refused([](Managed& m) { m.tensor.ndim = -1; }));
  EXPECT_TRUE(refused([](Managed& m) { m.tensor.shape[0] = -1; }));
  EXPECT_TRUE(refused([](Managed& m) { m.tensor.shape = nullptr; }));
  EXPECT_TRUE(refused([](Managed& m) { m.tensor.data = nullptr; }));
  EXPECT_FALSE(refused([](Managed&) {}));
}

}  // namespace
}  // namespace penstock
