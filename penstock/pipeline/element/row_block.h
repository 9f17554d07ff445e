#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"

namespace penstock {

// One row of a chunk as a block of one element, for keeping it: Block::view is the way back. What
// lies between columns is zero. REQUIRED: the row is alive.
BlockLayout row_layout(const Chunk& in, uint32_t row);
void write_row(const Chunk& in, uint32_t row, const BlockLayout& layout, std::byte* to);

}  // namespace penstock
