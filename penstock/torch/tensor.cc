#include "penstock/torch/tensor.h"

#include <ATen/ATen.h>

#include <array>
#include <string>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::torch {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 12> kTypes = {{
    {DType::kBool, at::kBool},
    {DType::kInt8, at::kChar},
    {DType::kInt16, at::kShort},
    {DType::kInt32, at::kInt},
    {DType::kInt64, at::kLong},
    {DType::kUint8, at::kByte},
    {DType::kFloat16, at::kHalf},
    {DType::kBfloat16, at::kBFloat16},
    {DType::kFloat32, at::kFloat},
    {DType::kFloat64, at::kDouble},
    {DType::kComplex64, at::kComplexFloat},
    {DType::kComplex128, at::kComplexDouble},
}};

// Whether torch can view the tensor in place.
bool can_be_viewed(const Tensor& tensor) {
  if (tensor.read_only()) return false;
  const auto size = static_cast<int64_t>(size_of(tensor.dtype()));
  for (int64_t stride : tensor.strides()) {
    if (stride < 0 || stride % size != 0) return false;
  }
  return true;
}

}  // namespace

at::Tensor to_torch(const Tensor& tensor) {
  if (!tensor.defined()) {
    throw Error(Code::kInvalidArgument, "torch::to_torch", "the tensor has no data");
  }
  for (const auto& [dtype, type] : kTypes) {
    if (dtype != tensor.dtype()) continue;
    if (!can_be_viewed(tensor)) return to_torch(tensor.copy());
    Shape strides = tensor.strides();
    for (int64_t& stride : strides) stride /= static_cast<int64_t>(size_of(dtype));
    // Keeps the Tensor and not only its owner: a leased block counts as used while a Tensor exists.
    return at::from_blob(
        tensor.data(), tensor.shape(), strides, [tensor](void*) {}, type);
  }
  throw Error(Code::kInvalidArgument, "torch::to_torch",
              "torch has no " + std::string(name_of(tensor.dtype())) + ": cast the tensor before");
}

Tensor from_torch(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || !tensor.device().is_cpu()) {
    throw Error(Code::kInvalidArgument, "torch::from_torch",
                "only a dense tensor on the CPU can be shared: tensor.to_dense().cpu() before");
  }
  for (const auto& [dtype, type] : kTypes) {
    if (type != tensor.scalar_type()) continue;
    Shape strides = tensor.strides().vec();
    for (int64_t& stride : strides) stride *= static_cast<int64_t>(size_of(dtype));
    return Tensor::view(dtype, tensor.sizes().vec(), tensor.data_ptr(),
                        std::make_shared<at::Tensor>(tensor), std::move(strides));
  }
  throw Error(Code::kInvalidArgument, "torch::from_torch",
              std::string("penstock has no ") + c10::toString(tensor.scalar_type()));
}

}  // namespace penstock::torch
