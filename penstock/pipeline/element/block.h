#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/memory/batch_layout.h"
#include "penstock/memory/example.h"
#include "penstock/pipeline/element/element.h"

namespace penstock {

// The memory layout of a block of `rows` elements. A value. Three parts follow each other; every
// piece is 64-byte aligned:
// - The columns of all fixed leaves, laid out by RowLayout (contiguous).
// - For each variable leaf, its offsets, and for a deep leaf (Leaf::deep) its dims:
//     i64 offsets[rows + 1]  in steps of the first axis; of a deep leaf in single values
//     i64 dims[rows][axes]
// - The values of each variable leaf.
// offsets[rows] gives the number of values, so a block needs no header.
class BlockLayout {
 public:
  BlockLayout() = default;
  // `value_bytes`: the bytes of each variable leaf's values, in the order of the leaves; empty: 0
  // for each. Error kInvalidArgument: a size overflows, or is not a multiple of the leaf's step
  // size.
  BlockLayout(const ElementSpec& spec, uint64_t rows, std::span<const uint64_t> value_bytes = {});

  uint64_t rows() const { return fixed_.rows(); }
  uint64_t bytes() const { return bytes_; }
  // The size of all columns, offsets and dims: the part whose size does not depend on the values.
  uint64_t known_bytes() const { return known_bytes_; }
  // fixed() has the columns of the fixed leaves; fixed_place(leaf) is the leaf's index among them.
  const RowLayout& fixed() const { return fixed_; }
  size_t fixed_place(size_t leaf) const { return places_[leaf].fixed; }
  // Byte offsets from the block's start, for variable leaves only. dims(): only for deep leaves.
  uint64_t offsets(size_t leaf) const { return places_[leaf].offsets; }
  uint64_t dims(size_t leaf) const { return places_[leaf].dims; }
  uint64_t values(size_t leaf) const { return places_[leaf].values; }

 private:
  struct Place {
    size_t fixed = 0;
    uint64_t offsets = 0, dims = 0, values = 0;
  };
  RowLayout fixed_;
  std::vector<Place> places_;  // by leaf
  uint64_t known_bytes_ = 0;
  uint64_t bytes_ = 0;
};

class Chunk;

// Elements in one piece of memory: a batch, a stream chunk or a cache entry. A view; copies share
// the owner. Any thread.
class Block {
 public:
  Block() = default;
  // Checks that the offsets ascend from 0, that the rows' shapes agree with them, and that
  // everything lies within `bytes`. Error kDataLoss. `data` is 8-byte aligned.
  Block(SpecRef spec, uint64_t rows, std::byte* data, uint64_t bytes, std::shared_ptr<void> owner);

  const SpecRef& spec() const { return spec_; }
  uint64_t rows() const { return count_; }

  // One tensor per column. A variable leaf `x` becomes `x` (the values of all elements,
  // concatenated) and `x/offsets` (int64, rows + 1). For a deep leaf `x` is flat, and `x/dims`
  // (int64, rows by axes) has the shapes.
  Example batch() const;
  // One element. Error kInvalidArgument: `row` is out of range.
  Example row(uint64_t row) const;
  // Puts one element into row `at` of `out`, which has the block's spec: as a view, or as a copy
  // where the column is bound. REQUIRED: row < rows().
  void view(uint64_t row, Chunk& out, uint32_t at) const;
  // Rows [begin, end), without a copy. Error kInvalidArgument: the range is out of bounds.
  Block rows(uint64_t begin, uint64_t end) const;

 private:
  const int64_t* offsets_of(size_t leaf) const;
  void check_values(uint64_t bytes);
  Tensor column(size_t leaf) const;
  Tensor values_between(size_t leaf, int64_t begin, int64_t end, Shape shape) const;

  SpecRef spec_;
  BlockLayout layout_;
  std::byte* data_ = nullptr;
  std::shared_ptr<void> owner_;
  uint64_t first_ = 0, count_ = 0;
};

// A column of variable-size rows within one element. Used where a batch is an element of further
// stages: the column is the bytes of one leaf (LeafKind::kColumn), which pass through the stages as
// a whole. Its size is a multiple of 64 bytes:
//
//   u64 bytes in all, u64 rows, u64 bytes of the spec
//   the spec of one leaf, which describes the rows
//   the Block, from the next 64-byte boundary on
struct ColumnBlock {
  static uint64_t bytes_of(const ElementSpec& spec, const BlockLayout& layout);
  // Writes the header and the spec, and zeros the bytes of the block. Returns where the block
  // begins.
  static std::byte* begin(const ElementSpec& spec, const BlockLayout& layout, std::byte* to);
  // A view that shares `owner`. A copy if there is no owner or `from` is not aligned. Error
  // kDataLoss: these bytes are not a ColumnBlock.
  static Block read(const std::byte* from, uint64_t bytes, std::shared_ptr<void> owner);
};

// Replaces each kColumn leaf `x` by the tensors of a batch's column: `x`, `x/offsets` and for a
// deep leaf `x/dims` (see Block::batch). Views of the same memory.
Example expand_columns(Example element, const ElementSpec& spec);

// For stages that stack elements. Error kInvalidArgument: the spec has a kColumn leaf, which cannot
// be stacked again.
void refuse_columns(const ElementSpec& spec);

}  // namespace penstock
