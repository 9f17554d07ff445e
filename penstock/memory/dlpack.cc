#include "penstock/memory/dlpack.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

using dlpack::ManagedTensor;
using dlpack::ManagedTensorVersioned;

Error refuse_dlpack(const std::string& text) {
  return Error(Code::kInvalidArgument, "dlpack", text);
}

uint8_t code_of(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return dlpack::kBool;
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return dlpack::kInt;
    case DType::kUint8:
    case DType::kUint16:
    case DType::kUint32:
    case DType::kUint64:
      return dlpack::kUint;
    case DType::kFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
      return dlpack::kFloat;
    case DType::kBfloat16:
      return dlpack::kBfloat;
    case DType::kComplex64:
    case DType::kComplex128:
      return dlpack::kComplex;
  }
  throw refuse_dlpack("no such dtype");
}

std::optional<DType> dtype_from(const dlpack::DataType& type) {
  if (type.lanes != 1) return std::nullopt;
  for (size_t i = 0; i < kDTypeCount; ++i) {
    auto dtype = static_cast<DType>(i);
    if (code_of(dtype) == type.code && size_of(dtype) * 8 == type.bits) return dtype;
  }
  return std::nullopt;
}

// An exported struct, and the data that it points to.
template <typename Managed>
struct Exported {
  Managed managed{};
  Tensor tensor;
  Shape strides;  // in elements
};

template <typename Managed>
Managed* export_tensor(const Tensor& tensor, dlpack::Device device) {
  if (!tensor.defined()) throw refuse_dlpack("an undefined tensor");
  auto exported = std::make_unique<Exported<Managed>>();
  exported->tensor = tensor;
  auto itemsize = static_cast<int64_t>(size_of(tensor.dtype()));
  for (size_t axis = 0; axis < tensor.ndim(); ++axis) {
    int64_t stride = tensor.strides()[axis];
    // A stride that no element uses may have any value and is not checked.
    if (stride % itemsize != 0 && tensor.size() > 0 && tensor.dim(axis) > 1) {
      throw refuse_dlpack("a stride of " + std::to_string(stride) + " bytes is no multiple of " +
                          std::to_string(itemsize) + "; copy the tensor first");
    }
    exported->strides.push_back(stride / itemsize);
  }
  Managed& managed = exported->managed;
  dlpack::RawTensor& raw = managed.tensor;
  raw.data = tensor.data();
  raw.device = device;
  raw.ndim = static_cast<int32_t>(tensor.ndim());
  raw.dtype = {code_of(tensor.dtype()), static_cast<uint8_t>(itemsize * 8), 1};
  raw.shape = const_cast<int64_t*>(exported->tensor.shape().data());  // consumers only read it
  raw.strides = exported->strides.data();
  raw.byte_offset = 0;
  managed.manager_ctx = exported.get();
  managed.deleter = [](Managed* self) {
    if (self == nullptr) return;
    std::unique_ptr<Exported<Managed>> owned(static_cast<Exported<Managed>*>(self->manager_ctx));
  };
  return &exported.release()->managed;
}

template <typename Managed>
Tensor import_tensor(Managed* managed, bool read_only) {
  const dlpack::RawTensor& raw = managed->tensor;
  int32_t device = raw.device.device_type;
  if (device != dlpack::kCpu && device != dlpack::kCudaHost) {
    throw refuse_dlpack("the array is on a device of type " + std::to_string(device) +
                        ", not in main memory; move it to the CPU first");
  }
  std::optional<DType> dtype = dtype_from(raw.dtype);
  if (!dtype) {
    throw refuse_dlpack("elements of type code " + std::to_string(raw.dtype.code) + ", " +
                        std::to_string(raw.dtype.bits) + " bits, " +
                        std::to_string(raw.dtype.lanes) + " lanes are not supported");
  }
  if (raw.ndim < 0 || (raw.ndim > 0 && raw.shape == nullptr)) throw refuse_dlpack("no shape");
  Shape shape(raw.shape, raw.shape + raw.ndim);
  Shape strides;
  if (raw.strides != nullptr) {
    strides.assign(raw.strides, raw.strides + raw.ndim);
    for (int64_t& stride : strides) {
      if (__builtin_mul_overflow(stride, static_cast<int64_t>(size_of(*dtype)), &stride)) {
        throw refuse_dlpack("a stride overflows");
      }
    }
  }
  void* data = raw.data == nullptr ? nullptr : static_cast<std::byte*>(raw.data) + raw.byte_offset;
  // Takes ownership of `managed` in the last step, after everything that may throw.
  struct Holder {
    Managed* managed = nullptr;
    ~Holder() {
      if (managed != nullptr && managed->deleter != nullptr) managed->deleter(managed);
    }
  };
  auto holder = std::make_shared<Holder>();
  Tensor tensor =
      Tensor::view(*dtype, std::move(shape), data, holder, std::move(strides), read_only);
  holder->managed = managed;
  return tensor;
}

}  // namespace

ManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor, dlpack::Device device) {
  ManagedTensorVersioned* managed = export_tensor<ManagedTensorVersioned>(tensor, device);
  managed->version = {dlpack::kMajorVersion, dlpack::kMinorVersion};
  managed->flags = tensor.read_only() ? dlpack::kReadOnly : 0;
  return managed;
}

ManagedTensor* to_dlpack(const Tensor& tensor, dlpack::Device device) {
  if (tensor.read_only()) {
    throw refuse_dlpack(
        "a read-only tensor needs a consumer of DLPack 1.0 or later; or copy it first");
  }
  return export_tensor<ManagedTensor>(tensor, device);
}

Tensor from_dlpack(ManagedTensorVersioned* managed) {
  if (managed->version.major != dlpack::kMajorVersion) {
    throw refuse_dlpack("DLPack version " + std::to_string(managed->version.major) +
                        "; we know version " + std::to_string(dlpack::kMajorVersion));
  }
  if (managed->flags & dlpack::kSubbytePadded) throw refuse_dlpack("padded sub-byte elements");
  return import_tensor(managed, (managed->flags & dlpack::kReadOnly) != 0);
}

Tensor from_dlpack(ManagedTensor* managed, bool read_only) {
  return import_tensor(managed, read_only);
}

}  // namespace penstock
