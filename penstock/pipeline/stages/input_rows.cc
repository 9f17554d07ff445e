#include "penstock/pipeline/stages/input_rows.h"

#include <utility>

namespace penstock {

void InputRows::fetch(IndexedReader& reader, const SpecRef& spec, const At& at,
                      std::span<const uint64_t> positions, Chunk& out, uint32_t row, size_t first) {
  make(reader, spec, at, positions, out, row, first);
  for (auto& [lost, failure] : rows_.failures()) out.fail(lost, std::move(failure));
  out.move_notes_from(rows_);
}

Chunk& InputRows::make(IndexedReader& reader, const SpecRef& spec, const At& at,
                       std::span<const uint64_t> positions, Chunk& out, uint32_t row,
                       size_t first) {
  row_ = row;
  rows_.reset(spec, static_cast<uint32_t>(row + positions.size()));
  if (spec != nullptr && !out.inferred()) {
    for (size_t leaf = 0; leaf < spec->leaves().size(); ++leaf) {
      size_t to = first + leaf;
      if (out.bound(to)) rows_.bind(leaf, out.dense(to), out.stride(to));
    }
  }
  reader.fetch(at, positions, rows_, row);
  return rows_;
}

void InputRows::forward(Chunk& out, size_t first) {
  const uint64_t alive = (rows_.alive() & out.alive()) >> row_ << row_;
  const size_t leaves = rows_.spec()->leaves().size();
  for (size_t leaf = 0; leaf < leaves; ++leaf) {
    const size_t to = first + leaf;
    if (out.bound(to) && rows_.bound(leaf)) continue;  // written there already
    for (uint64_t left = alive; left != 0; left &= left - 1) {
      auto row = static_cast<uint32_t>(__builtin_ctzll(left));
      out.view(to, row, rows_.at(leaf, row), rows_.shape(leaf, row));
    }
  }
  out.keep_owners_of(rows_);
}

}  // namespace penstock
