#include "penstock/memory/dtype.h"

#include <array>

namespace penstock {
namespace {

struct Traits {
  std::string_view name;
  uint8_t bytes;
};

// In the order of the enumeration.
constexpr std::array<Traits, kDTypeCount> kTraits = {{{"bool", 1},
                                                      {"int8", 1},
                                                      {"int16", 2},
                                                      {"int32", 4},
                                                      {"int64", 8},
                                                      {"uint8", 1},
                                                      {"uint16", 2},
                                                      {"uint32", 4},
                                                      {"uint64", 8},
                                                      {"float16", 2},
                                                      {"bfloat16", 2},
                                                      {"float32", 4},
                                                      {"float64", 8},
                                                      {"complex64", 8},
                                                      {"complex128", 16}}};

}  // namespace

bool is_valid(DType dtype) { return static_cast<size_t>(dtype) < kDTypeCount; }

size_t size_of(DType dtype) {
  return is_valid(dtype) ? kTraits[static_cast<size_t>(dtype)].bytes : 0;
}

std::string_view name_of(DType dtype) {
  return is_valid(dtype) ? kTraits[static_cast<size_t>(dtype)].name : "invalid";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kDTypeCount; ++i) {
    if (kTraits[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace penstock
