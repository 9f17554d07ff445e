#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/stages/batch_element.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/streams/held_row.h"

namespace penstock {

// Elements that a stream's stage held back, stacked into one element of it: every leaf has one more
// axis. One thread.
class HeldBatch {
 public:
  // `stage`: the title that its errors and failures have. `input`: the elements' spec, or nullptr:
  // they tell. `padding` where lengths is kPadded; it outlives this.
  HeldBatch(std::string stage, SpecRef input, Collector::Lengths lengths, const Padding* padding)
      : stage_(std::move(stage)), input_(std::move(input)), rows_(scratch_, lengths, padding) {}

  // What was given so far is not used any more.
  void empty() { scratch_.empty(); }
  // Row `row` of `out`: views, good until empty(). What was lost on the way to the elements goes
  // along. A leaf whose lengths are each element's own becomes a column (ColumnBlock). Elements
  // that differ in what must not make a row that failed. REQUIRED: there is one at least.
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
