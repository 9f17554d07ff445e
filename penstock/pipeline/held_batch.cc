#include "penstock/pipeline/held_batch.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "penstock/base/error.h"
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
  const ElementSpec& spec = *rows_.spec();
  const BlockLayout layout = rows_.layout(rows_.rows());
  std::vector<Leaf> leaves(spec.leaves().begin(), spec.leaves().end());
  for (Leaf& leaf : leaves) {
    if (!leaf.fixed()) {
      throw Error(Code::kInvalidArgument, stage_,
                  "'" + leaf.name + "' of " + spec.to_string() +
                      " has a length of each element's own, and cannot be stacked here");
    }
    leaf.kind = LeafKind::kDense;
    leaf.shape.insert(leaf.shape.begin(), static_cast<int64_t>(rows_.rows()));
  }
  std::byte* block = scratch_.take(layout.bytes());
  rows_.write(layout, block);
  const auto batched = std::make_shared<ElementSpec>(std::move(leaves), spec.nest());
  settle_alike(batched, out);
  for (size_t i = 0; i < batched->leaves().size(); ++i) {
    out.view(i, row, layout.fixed().column(block, layout.fixed_place(i)),
             batched->leaves()[i].shape);
  }
}

}  // namespace penstock
