#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/memory/example.h"
#include "penstock/pipeline/element/block.h"

namespace penstock {

// A column of variable-size rows within one element. Used where a batch is an element of further
// stages: the column is the bytes of one leaf (LeafKind::kColumn), which pass through the stages as
// a whole. Its size is a multiple of 64 bytes:
//
//   u64 bytes in all, u64 rows, u64 bytes of the spec
//   the spec of one leaf, which describes the rows
//   the Block, from the next 64-byte boundary on
struct ColumnBlock {
  static uint64_t bytes_of(const ElementSpec& spec, const BlockLayout& layout);
  // Writes the header and the spec, and zeros the bytes of the block. Returns where the block
  // begins.
  static std::byte* begin(const ElementSpec& spec, const BlockLayout& layout, std::byte* to);
  // A view that shares `owner`. A copy if there is no owner or `from` is not aligned. Error
  // kDataLoss: these bytes are not a ColumnBlock.
  static Block read(const std::byte* from, uint64_t bytes, std::shared_ptr<void> owner);
};

// Replaces each kColumn leaf `x` by the tensors of a batch's column: `x`, `x/offsets` and for a
// deep leaf `x/dims` (see Block::batch). Views of the same memory.
Example expand_columns(Example element, const ElementSpec& spec);

// For stages that stack elements. Error kInvalidArgument: the spec has a kColumn leaf, which cannot
// be stacked again.
void refuse_columns(const ElementSpec& spec);

}  // namespace penstock
