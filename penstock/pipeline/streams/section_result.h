#pragma once

#include <optional>
#include <vector>

#include "penstock/pipeline/element/chunk.h"

namespace penstock {

// What became of one element that a section's worker made, beside its row.
struct SectionResult {
  std::optional<Failure> failure;  // there is no row
  std::vector<Failure> notes;      // lost on the way to it
};

}  // namespace penstock
