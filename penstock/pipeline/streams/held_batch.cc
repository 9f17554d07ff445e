#include "penstock/pipeline/streams/held_batch.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

void HeldBatch::give(std::span<HeldRow* const> rows, Chunk& out, uint32_t row) {
  for (HeldRow* held : rows) {
    for (Failure& lost : held->take_lost()) out.note(row, std::move(lost));
  }
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
    rows = rows.subspan(some.size());
  }
  (void)rows_.settle();
  batch_.give(rows_, input_.get(), false, out, row);
}

}  // namespace penstock
