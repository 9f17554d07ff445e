#pragma once

#include <cstdint>

#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/collate.h"

namespace penstock {

// Makes a batch one element of further stages. Every leaf gets one more axis; a leaf whose rows
// differ in size becomes a column (ColumnBlock). One thread.
class BatchElement {
 public:
  explicit BatchElement(Scratch& scratch) : scratch_(scratch) {}

  // Makes the collected rows row `row` of `out`, as views of scratch memory. `declared`: the spec
  // that the input stage declares for the rows, or nullptr. `ragged`: leaves of variable length in
  // `declared` become columns in every batch, even if the lengths of one batch are equal. Error
  // kInvalidArgument: the batch differs from the rows before it, or its rows are batches with
  // columns. REQUIRED: rows.settle() was true.
  void give(const Collector& rows, const ElementSpec* declared, bool ragged, Chunk& out,
            uint32_t row);

 private:
  static bool is_column(const ElementSpec& spec, size_t leaf, const ElementSpec* declared,
                        bool ragged);
  void settle(const Collector& rows, const ElementSpec* declared, bool ragged, Chunk& out);

  Scratch& scratch_;
  SpecRef made_, made_of_;  // specs of the last batch and of its rows
  uint64_t made_rows_ = 0;
};

}  // namespace penstock
