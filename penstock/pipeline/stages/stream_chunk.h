#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/stages/gather_chunk.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Elements of a stream for one ticket. The ticket's worker applies the tail to them. A chunk is one
// piece of memory in the consumer's arena, which workers in all processes map:
//
//   u64 kind (2), u64 bytes in all, u64 ordinal, u64 rows
//   u64 bytes of the spec, u64 bytes of the Block, u64 bytes of Origins
//   the spec
//   the Block, from the next 64-byte boundary on
//   Origins, from the next 64-byte boundary on
//
// An ordinal is the number of a delivered element in the stream's epoch.
struct StreamChunk {
  static constexpr uint64_t kKind = 2;  // kind of an entry's indices; 0 and 1 are a sampler's

  uint64_t ordinal = 0;
  Block block;
  std::span<const std::byte> origins;

  // As Indexed::origin.
  std::string origin(uint64_t position) const;
  // Number of elements from ordinal `first` to the end of the chunk.
  uint64_t rows_from(uint64_t first) const { return ordinal + block.rows() - first; }

  static uint64_t bytes_of(const GatherChunk& elements);
  // `to` has bytes_of(elements) bytes and is 64-byte aligned.
  static void write(const GatherChunk& elements, uint64_t ordinal, std::byte* to);
  // Writes a chunk into new memory of the arena, or completes it where its elements lie already.
  // Returns its offset in the arena. The receiver of the chunk releases it. Error kOutOfMemory.
  static uint64_t put(GatherChunk& elements, uint64_t ordinal, Allocator& arena);
  // Error kInternal: not a stream chunk.
  static StreamChunk read(const std::byte* from);
};

// The source of a tail: element `ordinal` of the stream chunk at Context::stream_chunk.
IndexedRef chunk_source(SpecRef spec);
// Whether the tail is that source alone, with no stage after it.
bool is_chunk_source(const Indexed& tail);

}  // namespace penstock
