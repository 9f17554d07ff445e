#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "penstock/base/half.h"
#include "penstock/memory/dtype.h"

namespace penstock {

// Access to values of real dtypes in memory at any alignment, and their C++ types.
template <class T>
struct Stored {
  using Value = T;
  static constexpr size_t kBytes = sizeof(T);
  static T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static void store(std::byte* to, T value) { std::memcpy(to, &value, sizeof(value)); }
};

struct StoredBool {
  using Value = bool;
  static constexpr size_t kBytes = 1;
  static bool load(const std::byte* from) { return *from != std::byte{0}; }
  static void store(std::byte* to, bool value) { *to = static_cast<std::byte>(value); }
};

struct StoredFloat16 {
  using Value = float;
  static constexpr size_t kBytes = 2;
  static float load(const std::byte* from) {
    return float16_to_float(Stored<uint16_t>::load(from));
  }
  static void store(std::byte* to, float value) {
    Stored<uint16_t>::store(to, float_to_float16(value));
  }
};

struct StoredBfloat16 {
  using Value = float;
  static constexpr size_t kBytes = 2;
  static float load(const std::byte* from) {
    return bfloat16_to_float(Stored<uint16_t>::load(from));
  }
  static void store(std::byte* to, float value) {
    Stored<uint16_t>::store(to, float_to_bfloat16(value));
  }
};

constexpr bool is_complex(DType dtype) {
  return dtype == DType::kComplex64 || dtype == DType::kComplex128;
}

// Calls f with the Stored type of a dtype. REQUIRED: the dtype is not complex.
template <class F>
auto with_stored(DType dtype, F f) {
  switch (dtype) {
    case DType::kBool:
      return f(StoredBool());
    case DType::kInt8:
      return f(Stored<int8_t>());
    case DType::kInt16:
      return f(Stored<int16_t>());
    case DType::kInt32:
      return f(Stored<int32_t>());
    case DType::kInt64:
      return f(Stored<int64_t>());
    case DType::kUint16:
      return f(Stored<uint16_t>());
    case DType::kUint32:
      return f(Stored<uint32_t>());
    case DType::kUint64:
      return f(Stored<uint64_t>());
    case DType::kFloat16:
      return f(StoredFloat16());
    case DType::kBfloat16:
      return f(StoredBfloat16());
    case DType::kFloat32:
      return f(Stored<float>());
    case DType::kFloat64:
      return f(Stored<double>());
    default:
      return f(Stored<uint8_t>());
  }
}

}  // namespace penstock
