#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/streams/held_row.h"

namespace penstock {

// Stacks elements that a stream's stage held back into one element: every leaf gets one more axis.
// One thread.
class HeldBatch {
 public:
  // `stage`: the stage's title, for errors and failures. `input`: the elements' spec, or nullptr if
  // it is inferred. `padding`: for lengths kPadded; must outlive this.
  HeldBatch(std::string stage, SpecRef input, Collector::Lengths lengths, const Padding* padding)
      : stage_(std::move(stage)), input_(std::move(input)), rows_(scratch_, lengths, padding) {}

  // Frees the memory of the given rows, which must no longer be in use.
  void empty() { scratch_.empty(); }
  // Stacks `rows` into row `row` of `out`: views, valid until empty(). The rows' losses become
  // notes of the row. A leaf of variable length becomes a column (ColumnBlock). If elements differ
  // where they must be equal, the row is a failure. REQUIRED: rows is not empty.
  void give(std::span<HeldRow* const> rows, Chunk& out, uint32_t row);

 private:
  void stack(std::span<HeldRow* const> rows, Chunk& out, uint32_t row);

  const std::string stage_;
  const SpecRef input_;
  Scratch scratch_;
  Collector rows_;
  BatchElement batch_{scratch_};
  std::vector<uint64_t> positions_;
};

}  // namespace penstock
