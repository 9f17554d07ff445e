#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"

namespace penstock {

// A row of a chunk as a block of one element, for storing it. Block::view reads it back. Padding
// between the columns is zeroed. REQUIRED: the row is alive.
BlockLayout row_layout(const Chunk& in, uint32_t row);
void write_row(const Chunk& in, uint32_t row, const BlockLayout& layout, std::byte* to);

}  // namespace penstock
