#pragma once

#include <optional>
#include <vector>

#include "penstock/pipeline/element/chunk.h"

namespace penstock {

// The result of one element of a parallel map, without its row.
struct ParallelMapResult {
  std::optional<Failure> failure;  // if set, there is no row
  std::vector<Failure> notes;      // losses before the element
};

}  // namespace penstock
