#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/stages/gather_chunk.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Elements of a stream chunk that stay in the blocks of the arena where workers made them. The
// chunk has a table of their addresses, and a lease on each block:
//
//   u64 number of leases
//   Ref of each lease
//   for each leaf: i64 addresses[rows], of the values, counted from the table's start
//                  if the leaf is variable: i64 lengths[rows][axes]
//   copies of values that lie in no leased block, from 64-byte boundaries on
//
// A view of the table; any thread.
class LeasedRows {
 public:
  LeasedRows() = default;
  LeasedRows(SpecRef spec, uint64_t rows, const std::byte* table)
      : spec_(std::move(spec)), rows_(rows), table_(table) {}

  // The size of a table with the collected rows and `leases` leases.
  static uint64_t bytes_of(const Collector& rows, uint64_t leases, const Allocator& arena);
  // Writes the table into memory of the arena. Returns the bytes of copied values. REQUIRED: values
  // in the arena lie in blocks of `leases`, which pass to the table.
  static uint64_t write(const Collector& rows, std::span<const Ref> leases, const Allocator& arena,
                        std::byte* table);
  // Of the table. To be returned to the arena's region when the table is released.
  static std::span<const Ref> leases(const std::byte* table);

  const SpecRef& spec() const { return spec_; }
  uint64_t rows() const { return rows_; }
  // As Block::view.
  void view(uint64_t row, Chunk& out, uint32_t at) const;

 private:
  SpecRef spec_;
  uint64_t rows_ = 0;
  const std::byte* table_ = nullptr;
};

// Elements of a stream for one ticket. The ticket's worker applies the tail to them. A chunk is one
// piece of memory in the consumer's arena, which workers in all processes map:
//
//   u64 kind (2 or 3), u64 bytes in all, u64 ordinal, u64 rows
//   u64 bytes of the spec, u64 bytes of the rows, u64 bytes of Origins
//   the spec
//   the rows, from the next 64-byte boundary on: a Block (2), or LeasedRows (3)
//   Origins, from the next 64-byte boundary on
//
// Large elements that workers made are LeasedRows: only the ticket's worker copies them.
// An ordinal is the number of a delivered element in the stream's epoch.
struct StreamChunk {
  // Kinds of an entry's input; 0 and 1 are a sampler's.
  static constexpr uint64_t kBlock = 2, kLeased = 3;

  uint64_t ordinal = 0;
  Block block;        // kBlock
  LeasedRows leased;  // kLeased
  std::span<const std::byte> origins;

  // As Indexed::origin.
  std::string origin(uint64_t position) const;
  const SpecRef& spec() const { return leased.rows() != 0 ? leased.spec() : block.spec(); }
  uint64_t rows() const { return leased.rows() != 0 ? leased.rows() : block.rows(); }
  // As Block::view.
  void view(uint64_t row, Chunk& out, uint32_t at) const {
    leased.rows() != 0 ? leased.view(row, out, at) : block.view(row, out, at);
  }
  // Number of elements from ordinal `first` to the end of the chunk.
  uint64_t rows_from(uint64_t first) const { return ordinal + rows() - first; }

  // The bytes of the chunk, and of the blocks that it holds leases on.
  static uint64_t bytes_of(const GatherChunk& elements);
  // `to` has bytes_of(elements) bytes and is 64-byte aligned. REQUIRED: `elements` has no leases.
  static void write(GatherChunk& elements, uint64_t ordinal, std::byte* to);
  // Writes a chunk into new memory of the arena, or completes it where its elements lie already.
  // Returns its offset in the arena. The receiver of the chunk calls release(). Error kOutOfMemory.
  static uint64_t put(GatherChunk& elements, uint64_t ordinal, Allocator& arena);
  // Releases an entry's input of any kind, and the leases that it holds.
  static void release(Allocator& arena, uint64_t offset);
  // Error kInternal: not a stream chunk.
  static StreamChunk read(const std::byte* from);
};

// The source of a tail: element `ordinal` of the stream chunk at Context::stream_chunk.
IndexedRef chunk_source(SpecRef spec);
// Whether the tail is that source alone, with no stage after it.
bool is_chunk_source(const Indexed& tail);

}  // namespace penstock
