#pragma once

#include <cstdint>

#include "penstock/memory/tensor.h"

namespace penstock::dlpack {

// The structs of the DLPack protocol, version 1.1, as in its specification
// (https://dmlc.github.io/dlpack/latest/c_api.html). They have other names, so that a program can
// include a framework's dlpack.h as well.

inline constexpr uint32_t kMajorVersion = 1;  // another major version is another layout
inline constexpr uint32_t kMinorVersion = 1;

// Device types (int32_t in the struct); the ones that penstock handles.
inline constexpr int32_t kCpu = 1;
inline constexpr int32_t kCuda = 2;
inline constexpr int32_t kCudaHost = 3;  // pinned; the CPU can read and write it

// Type codes.
inline constexpr uint8_t kInt = 0;
inline constexpr uint8_t kUint = 1;
inline constexpr uint8_t kFloat = 2;
inline constexpr uint8_t kOpaqueHandle = 3;
inline constexpr uint8_t kBfloat = 4;
inline constexpr uint8_t kComplex = 5;
inline constexpr uint8_t kBool = 6;

// Bits of ManagedTensorVersioned::flags.
inline constexpr uint64_t kReadOnly = 1u << 0;
inline constexpr uint64_t kSubbytePadded = 1u << 2;

struct Device {
  int32_t device_type;
  int32_t device_id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct RawTensor {  // DLTensor
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; nullptr: C order
  uint64_t byte_offset;
};

struct ManagedTensor {  // DLManagedTensor, before version 1.0; capsule name "dltensor"
  RawTensor tensor;
  void* manager_ctx;
  void (*deleter)(ManagedTensor* self);
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct ManagedTensorVersioned {  // DLManagedTensorVersioned; capsule name "dltensor_versioned"
  Version version;
  void* manager_ctx;
  void (*deleter)(ManagedTensorVersioned* self);
  uint64_t flags;
  RawTensor tensor;
};

static_assert(sizeof(void*) == 8 && sizeof(RawTensor) == 48);
static_assert(sizeof(ManagedTensor) == 64 && sizeof(ManagedTensorVersioned) == 80);

}  // namespace penstock::dlpack

namespace penstock {

// Exchanges tensors with other frameworks without a copy, by the DLPack protocol. Does not touch
// Python; the bindings wrap the structs in capsules.
//
// Threads: any; deleters may be called from any thread too.

// The caller owns the result. The consumer calls its deleter once, which releases the tensor's
// owner (its lease). Error kInvalidArgument if a stride is not a multiple of the element's size.
// `device`: of the memory, if the tensor describes memory of a device.
dlpack::ManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor,
                                                    dlpack::Device device = {dlpack::kCpu, 0});
// The old struct has no read-only flag: a read-only tensor is an Error kInvalidArgument.
dlpack::ManagedTensor* to_dlpack(const Tensor& tensor, dlpack::Device device = {dlpack::kCpu, 0});

// A view of the producer's memory. The last tensor of it calls the deleter. Takes ownership of
// `managed`, unless it throws: Error kInvalidArgument for a device other than the CPU, elements
// that are not a DType (sub-byte, vector lanes, handles), or a newer major version.
Tensor from_dlpack(dlpack::ManagedTensorVersioned* managed);
// The old struct has no read-only flag: pass `read_only` for producers known to be immutable.
Tensor from_dlpack(dlpack::ManagedTensor* managed, bool read_only = false);

}  // namespace penstock
