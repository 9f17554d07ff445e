#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/pipeline/element/block.h"

namespace penstock {

// The stage of arrays, for whoever copies its elements straight into a batch. Any thread.
class MemoryRows {
 public:
  virtual ~MemoryRows() = default;
  // Whether rows lie in memory as elements have them.
  virtual bool as_they_are() const = 0;
  // Copies the elements at `positions`, any number of them, to rows row, row + 1, ... of a block of
  // the stage's spec. REQUIRED: as_they_are(); each position is below the length.
  virtual void copy(std::span<const uint64_t> positions, const BlockLayout& layout,
                    std::byte* block, uint64_t row) const = 0;
};

}  // namespace penstock
