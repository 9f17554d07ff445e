#pragma once

#include <cstdint>

#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/collate.h"

namespace penstock {

// A batch as one element that further stages work on: every leaf has one more axis, and one whose
// rows differ in size is a column (ColumnBlock). One thread.
class BatchElement {
 public:
  explicit BatchElement(Scratch& scratch) : scratch_(scratch) {}

  // What was collected, as row `row` of `out`: views of scratch. `declared`: the spec that the rows
  // were said to have, or nullptr; with `ragged` what differs in length there is a column in every
  // batch, also in one whose rows happen to be of one length. Error kInvalidArgument: it is unlike
  // the rows in front of it, or its rows are batches with columns. REQUIRED: rows.settle() was
  // true.
  void give(const Collector& rows, const ElementSpec* declared, bool ragged, Chunk& out,
            uint32_t row);

 private:
  static bool is_column(const ElementSpec& spec, size_t leaf, const ElementSpec* declared,
                        bool ragged);
  void settle(const Collector& rows, const ElementSpec* declared, bool ragged, Chunk& out);

  Scratch& scratch_;
  SpecRef made_, made_of_;  // the last one's, and that of its rows
  uint64_t made_rows_ = 0;
};

}  // namespace penstock
