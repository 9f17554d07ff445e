#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// An input's elements on their way into the chunk of a stage that has several inputs, or that adds
// to its elements: a chunk of their own, whose leaves are handed on as leaves first, first + 1, ...
// What is bound there is written there by the input; everything else becomes views. One thread;
// `scratch` outlives it.
class InputRows {
 public:
  explicit InputRows(Scratch& scratch) : rows_(scratch) {}

  // Makes elements of `reader`, whose stage has `spec`, as rows row, row + 1, ..., which `out` will
  // have at the same places. Those that are lost are lost to `out`, too.
  void fetch(IndexedReader& reader, const SpecRef& spec, const At& at,
             std::span<const uint64_t> positions, Chunk& out, uint32_t row, size_t first = 0);
  // The same, and `out` hears nothing of those that are lost.
  Chunk& make(IndexedReader& reader, const SpecRef& spec, const At& at,
              std::span<const uint64_t> positions, Chunk& out, uint32_t row, size_t first = 0);
  // Of what was fetched; nullptr: none could be made.
  const SpecRef& spec() const { return rows_.spec(); }
  // After out.settle(), unless its spec is known.
  void hand_on(Chunk& out, size_t first = 0);

 private:
  Chunk rows_;
  uint32_t row_ = 0;
};

}  // namespace penstock
