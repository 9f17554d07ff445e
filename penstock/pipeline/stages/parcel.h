#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/stages/gather_parcel.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Elements of a stream on their way to the worker that applies the tail to them: in one piece of
// the feed's arena, which workers in every process reach.
//
//   u64 kind (2), u64 bytes of all, u64 ordinal, u64 rows, u64 bytes of the spec, of the Block, of
//   Origins; the spec's bytes; from the next 64-byte boundary on the Block; from the next one
//   Origins
//
// An ordinal is an element's number in the stream's epoch, of those that were handed out.
struct Parcel {
  static constexpr uint64_t kKind = 2;  // of a post's indices; 0 and 1 are a sampler's

  uint64_t ordinal = 0;
  Block block;
  std::span<const std::byte> origins;

  // As Indexed::origin.
  std::string origin(uint64_t position) const;
  // Elements from an ordinal of its own to its end.
  uint64_t rows_from(uint64_t first) const { return ordinal + block.rows() - first; }

  static uint64_t bytes_of(const GatherParcel& elements);
  // `to` has that many bytes, 64-byte aligned.
  static void write(const GatherParcel& elements, uint64_t ordinal, std::byte* to);
  // The same into memory of its own, where they may lie already. Returns its place in the arena,
  // which is theirs; whoever takes it releases it. Error kOutOfMemory.
  static uint64_t put(GatherParcel& elements, uint64_t ordinal, Allocator& arena);
  // Error kInternal: it is no parcel.
  static Parcel read(const std::byte* from);
};

// The source of a tail: element `ordinal` of the parcel that Context::parcel points at.
IndexedRef parcel_source(SpecRef spec);
// Nothing is done to the elements on top of that.
bool is_parcel_source(const Indexed& tail);

}  // namespace penstock
