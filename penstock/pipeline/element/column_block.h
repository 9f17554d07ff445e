#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/memory/example.h"
#include "penstock/pipeline/element/block.h"

namespace penstock {

// A column of a batch whose rows differ in size, where the batch is an element that further stages
// work on: the bytes of one leaf (LeafKind::kColumn), which go through them as a whole.
//
//   u64 bytes of all, u64 rows, u64 bytes of the spec, the spec's bytes (of the one leaf that the
//   rows are); from the next 64-byte boundary on the Block; a multiple of 64 bytes in all
struct ColumnBlock {
  static uint64_t bytes_of(const ElementSpec& spec, const BlockLayout& layout);
  // Writes the head of it. Returns where the block's own bytes go, which are zero until then.
  static std::byte* begin(const ElementSpec& spec, const BlockLayout& layout, std::byte* to);
  // A view, for as long as `owner` keeps it; without one, or if it is not aligned, a copy. Error
  // kDataLoss: it is none.
  static Block read(const std::byte* from, uint64_t bytes, std::shared_ptr<void> owner);
};

// An element in which each such leaf `x` became the tensors of a column of a batch: `x`,
// `x/offsets` and perhaps `x/dims` (see Block::batch). Views of the same memory.
Example with_columns(Example element, const ElementSpec& spec);

// Error kInvalidArgument: there is such a leaf, and the elements are to be stacked once more.
void refuse_columns(const ElementSpec& spec);

}  // namespace penstock
