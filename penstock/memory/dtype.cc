#include "penstock/memory/dtype.h"

#include <array>

namespace penstock {
namespace {

// In the order of the enumeration.
constexpr std::array<std::string_view, kDTypeCount> kNames = {
    "bool",   "int8",    "int16",    "int32",   "int64",   "uint8",     "uint16",    "uint32",
    "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};

}  // namespace

std::string_view name_of(DType dtype) {
  return is_valid(dtype) ? kNames[static_cast<size_t>(dtype)] : "invalid";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (kNames[i] == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace penstock
