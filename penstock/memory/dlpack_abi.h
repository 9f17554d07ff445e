#pragma once

#include <cstdint>

// The structs of the DLPack protocol, version 1.1, as in its specification
// (https://dmlc.github.io/dlpack/latest/c_api.html). They have other names, so that a program can
// include a framework's dlpack.h as well.
namespace penstock::dlpack {

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
inline constexpr uint64_t kIsCopied = 1u << 1;
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
