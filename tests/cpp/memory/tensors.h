#pragma once

#include <cstdint>
#include <numeric>
#include <utility>

#include "penstock/memory/tensor.h"

namespace penstock::testing {

// 0, 1, 2, ... in this shape.
inline Tensor counting(Shape shape) {
  Tensor t = Tensor::make(DType::kInt32, std::move(shape));
  auto values = t.as_span<int32_t>();
  std::iota(values.begin(), values.end(), 0);
  return t;
}

}  // namespace penstock::testing
