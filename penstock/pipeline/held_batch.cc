#include "penstock/pipeline/held_batch.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/column_block.h"
#include "penstock/pipeline/stream_input.h"

namespace penstock {

void HeldBatch::give(std::span<HeldRow* const> rows, Chunk& out, uint32_t row) {
  try {
    stack(rows, out, row);
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;
    out.fail(row, {stage_, rows.front()->ordinal, std::current_exception()});
  }
}

void HeldBatch::stack(std::span<HeldRow* const> rows, Chunk& out, uint32_t row) {
  rows_.begin(input_);
  while (!rows.empty()) {
    const std::span<HeldRow* const> some = rows.first(std::min<size_t>(Chunk::kRows, rows.size()));
    positions_.clear();
    for (const HeldRow* held : some) positions_.push_back(held->ordinal);
    Chunk& chunk = rows_.add(positions_);
    for (size_t i = 0; i < some.size(); ++i) some[i]->give(chunk, static_cast<uint32_t>(i));
    for (auto& [from, lost] : chunk.notes()) out.note(row, std::move(lost));
    rows = rows.subspan(some.size());
  }
  (void)rows_.settle();
  refuse_columns(*rows_.spec());
  rows_.spec()->fixed() ? give_fixed(out, row) : give_columns(out, row);
}

void HeldBatch::give_fixed(Chunk& out, uint32_t row) {
  const ElementSpec& spec = *rows_.spec();
  const BlockLayout layout = rows_.layout(rows_.rows());
  std::byte* block = scratch_.take(layout.bytes());
  rows_.write(layout, block);
  std::vector<Leaf> leaves(spec.leaves().begin(), spec.leaves().end());
  for (Leaf& leaf : leaves) {
    leaf.kind = LeafKind::kDense;
    leaf.shape.insert(leaf.shape.begin(), static_cast<int64_t>(rows_.rows()));
  }
  const auto batched = std::make_shared<ElementSpec>(std::move(leaves), spec.nest());
  settle_alike(batched, out);
  for (size_t i = 0; i < batched->leaves().size(); ++i) {
    out.view(i, row, layout.fixed().column(block, layout.fixed_place(i)),
             batched->leaves()[i].shape);
  }
}

// A column whose rows may differ in size is one leaf.
void HeldBatch::give_columns(Chunk& out, uint32_t row) {
  const ElementSpec& spec = *rows_.spec();
  std::vector<Leaf> leaves(spec.leaves().begin(), spec.leaves().end());
  for (Leaf& leaf : leaves) {
    if (leaf.fixed()) {
      leaf.shape.insert(leaf.shape.begin(), static_cast<int64_t>(rows_.rows()));
    } else {
      leaf = {leaf.name, LeafKind::kColumn, DType::kUint8, {-1}};
    }
  }
  const auto batched = std::make_shared<ElementSpec>(std::move(leaves), spec.nest());
  settle_alike(batched, out);
  for (size_t i = 0; i < spec.leaves().size(); ++i) {
    if (spec.leaves()[i].fixed()) {
      out.view(i, row, rows_.fixed_column(i), batched->leaves()[i].shape);
    } else {
      const std::span<const std::byte> column = rows_.column(i);
      const auto bytes = static_cast<int64_t>(column.size());
      out.view(i, row, column.data(), {&bytes, 1});
    }
  }
}

}  // namespace penstock
