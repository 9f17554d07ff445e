#pragma once

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

namespace penstock {

// Types of elements, all of whole bytes and in the machine's byte order. The values are stable:
// they are sent between processes and stored in files.
enum class DType : uint8_t {
  kBool = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kUint8 = 5,
  kUint16 = 6,
  kUint32 = 7,
  kUint64 = 8,
  kFloat16 = 9,
  kBfloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
};
inline constexpr size_t kDTypeCount = 15;

// False for a value out of the enumeration, which may come from another process or a file.
constexpr bool is_valid(DType dtype) { return static_cast<size_t>(dtype) < kDTypeCount; }
// Bytes of one element; 0 if the value is not a DType.
constexpr size_t size_of(DType dtype) {
  constexpr uint8_t kBytes[kDTypeCount] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
  return is_valid(dtype) ? kBytes[static_cast<size_t>(dtype)] : 0;
}
// In the order of the enumeration.
inline constexpr std::array<std::string_view, kDTypeCount> kDTypeNames = {
    "bool",   "int8",    "int16",    "int32",   "int64",   "uint8",     "uint16",    "uint32",
    "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};

// NumPy's name of the dtype; "invalid" for a value out of the enumeration.
constexpr std::string_view name_of(DType dtype) {
  return is_valid(dtype) ? kDTypeNames[static_cast<size_t>(dtype)] : "invalid";
}
// nullopt if the name is not a DType.
constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (kDTypeNames[i] == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

// The DType of a C++ type. float16 and bfloat16 have none.
template <typename T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, bool>) {
    return DType::kBool;
  } else if constexpr (std::is_same_v<U, float>) {
    return DType::kFloat32;
  } else if constexpr (std::is_same_v<U, double>) {
    return DType::kFloat64;
  } else if constexpr (std::is_same_v<U, std::complex<float>>) {
    return DType::kComplex64;
  } else if constexpr (std::is_same_v<U, std::complex<double>>) {
    return DType::kComplex128;
  } else {
    static_assert(std::is_integral_v<U> && sizeof(U) <= 8, "no DType for this type");
    constexpr int log2 = sizeof(U) == 1 ? 0 : sizeof(U) == 2 ? 1 : sizeof(U) == 4 ? 2 : 3;
    return static_cast<DType>((std::is_signed_v<U> ? 1 : 5) + log2);
  }
}

}  // namespace penstock
