#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// The stage of split_batch(): passes batches through, and carries the number of parts.
class SplitBatch : public IndexMapped {
 public:
  SplitBatch(IndexedRef input, uint32_t parts) : IndexMapped(std::move(input)), parts_(parts) {}

  uint32_t parts() const { return parts_; }
  uint64_t length(uint64_t base) const override { return input()->length(base); }
  uint32_t map(At&, std::span<uint64_t> positions) const override {
    return static_cast<uint32_t>(positions.size());
  }

 private:
  uint32_t parts_;
};

// The parts of a batch, as views of its memory.
std::vector<Block> parts_of(const Block& batch, uint32_t parts);
// The same as one Example: leaf `x` of part 1 is named "1/x", and a leaf without a name "1".
Example split_example(const Block& batch, uint32_t parts);

}  // namespace penstock
