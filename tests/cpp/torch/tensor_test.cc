#include "penstock/torch/tensor.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"

namespace penstock::torch {
namespace {

TEST(TorchTensor, is_the_same_memory_both_ways) {
  Tensor mine = Tensor::make(DType::kFloat32, {2, 3});
  for (size_t i = 0; i < 6; ++i) mine.as_span<float>()[i] = static_cast<float>(i);
  at::Tensor theirs = to_torch(mine);
  EXPECT_EQ(theirs.data_ptr(), mine.data());
  EXPECT_EQ(theirs.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(theirs[1][2].item<float>(), 5);

  Tensor back = from_torch(theirs.t());  // strides too
  EXPECT_EQ(back.data(), mine.data());
  EXPECT_EQ(back.shape(), (Shape{3, 2}));
  EXPECT_EQ(back.strides(), (Shape{4, 12}));
  mine = Tensor();
  theirs = at::Tensor();
  EXPECT_EQ(back.contiguous().as_span<float>()[5], 5);  // it keeps the memory
}

TEST(TorchTensor, has_every_type_that_both_know) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool known =
        dtype != DType::kUint16 && dtype != DType::kUint32 && dtype != DType::kUint64;
    const Tensor tensor = Tensor::make(dtype, {4});
    if (!known) {
      EXPECT_THROW(to_torch(tensor), Error) << name_of(dtype);
      continue;
    }
    const at::Tensor theirs = to_torch(tensor);
    EXPECT_EQ(theirs.nbytes(), tensor.nbytes()) << name_of(dtype);
    EXPECT_EQ(from_torch(theirs).dtype(), dtype);
  }
}

TEST(TorchTensor, what_torch_has_no_view_of_is_copied) {
  Tensor tensor = Tensor::make(DType::kInt32, {3});
  for (int i = 0; i < 3; ++i) tensor.as_span<int32_t>()[i] = i;
  const Tensor backwards =
      Tensor::view(DType::kInt32, {3}, tensor.data() + 8, tensor.owner(), {-4});
  const at::Tensor copied = to_torch(backwards);
  EXPECT_EQ(copied[0].item<int>(), 2);
  EXPECT_EQ(copied[2].item<int>(), 0);

  const Tensor fixed =
      Tensor::view(DType::kInt32, {3}, tensor.data(), tensor.owner(), {}, /*read_only=*/true);
  to_torch(fixed).fill_(9);
  EXPECT_EQ(tensor.as_span<int32_t>()[2], 2);
}

TEST(TorchTensor, what_is_elsewhere_or_nothing_is_refused) {
  EXPECT_THROW(to_torch(Tensor()), Error);
  EXPECT_THROW(from_torch(at::Tensor()), Error);
  EXPECT_THROW(from_torch(at::eye(3).to_sparse()), Error);
  EXPECT_THROW(from_torch(at::empty({2}, at::TensorOptions().device(at::kMeta))), Error);
}

TEST(TorchTensor, a_batch_is_held_as_long_as_its_tensor) {
  auto feed = Dataset::range(64).batch(4).build({.workers = 2});
  std::vector<at::Tensor> held;
  while (auto batch = feed.next()) held.push_back(to_torch(batch->at("")));
  ASSERT_EQ(held.size(), 16u);
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(held[static_cast<size_t>(i / 4)][i % 4].item<int64_t>(), i);
  }
}

}  // namespace
}  // namespace penstock::torch
