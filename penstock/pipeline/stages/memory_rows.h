#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "penstock/pipeline/element/block.h"

namespace penstock {

// The interface of arrays() for code that copies elements straight into a batch. Any thread.
class MemoryRows {
 public:
  virtual ~MemoryRows() = default;
  // Whether the rows in memory have the layout of elements, so that copy() may be called.
  virtual bool has_element_layout() const = 0;
  // Copies the elements at `positions` to rows row, row + 1, ... of a block of the stage's spec.
  // REQUIRED: has_element_layout(); each position is below the length.
  virtual void copy(std::span<const uint64_t> positions, const BlockLayout& layout,
                    std::byte* block, uint64_t row) const = 0;
};

}  // namespace penstock
