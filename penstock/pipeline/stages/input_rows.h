#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// The elements of one input on their way into the chunk of a stage that has several inputs or adds
// leaves. They are made in a chunk of their own; its leaves become leaves first, first + 1, ... of
// the stage's chunk. The input writes straight into columns that are bound there; all other columns
// are passed on as views. One thread; `scratch` must outlive this.
class InputRows {
 public:
  explicit InputRows(Scratch& scratch) : rows_(scratch) {}

  // Makes elements of `reader`, whose stage has `spec`, as rows row, row + 1, ... of this chunk,
  // for the same rows of `out`. Rows that fail here fail in `out`, too.
  void fetch(IndexedReader& reader, const SpecRef& spec, const At& at,
             std::span<const uint64_t> positions, Chunk& out, uint32_t row, size_t first = 0);
  // Like fetch(), but failures are not passed to `out`.
  Chunk& make(IndexedReader& reader, const SpecRef& spec, const At& at,
              std::span<const uint64_t> positions, Chunk& out, uint32_t row, size_t first = 0);
  // The spec of the fetched rows; nullptr: none could be made.
  const SpecRef& spec() const { return rows_.spec(); }
  // Passes the rows on to `out`. If the spec of `out` is not known, call out.settle() first.
  void forward(Chunk& out, size_t first = 0);

 private:
  Chunk rows_;
  uint32_t row_ = 0;
};

}  // namespace penstock
