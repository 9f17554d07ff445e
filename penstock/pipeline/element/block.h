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

// Where everything lies in a block of `rows` elements. First every fixed leaf's column, exactly as
// RowLayout has it (64-byte aligned, contiguous); then for each other leaf
//
//   i64 offsets[rows + 1]    in steps of its first axis; in single values where a later axis
//   differs i64 dims[rows][axes]     only in that case
//
// and last, leaf after leaf, the values; every piece 64-byte aligned. The sizes of the values
// follow from offsets[rows], so a block needs no header. A value.
class BlockLayout {
 public:
  BlockLayout() = default;
  // `value_bytes`: of each variable leaf, in the order of the leaves; empty: none. Error
  // kInvalidArgument: a size that overflows, or is no whole number of values.
  BlockLayout(const ElementSpec& spec, uint64_t rows, std::span<const uint64_t> value_bytes = {});

  uint64_t rows() const { return fixed_.rows(); }
  uint64_t bytes() const { return bytes_; }
  // All columns, offsets and dims: what must be there before the sizes of values can be known.
  uint64_t known_bytes() const { return known_bytes_; }
  // The fixed leaves' columns; fixed_place(leaf) is a leaf's place among them.
  const RowLayout& fixed() const { return fixed_; }
  size_t fixed_place(size_t leaf) const { return places_[leaf].fixed; }
  // From the block's start; of variable leaves only. dims: only where a leaf is deep.
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

// Elements in one piece of memory: a batch, a stream chunk, an entry of a cache. A view; copies
// share the owner. Any thread.
class Block {
 public:
  Block() = default;
  // Checks what it reads: offsets ascend from 0, rows' shapes agree with them, and all of it lies
  // within `bytes`. Error kDataLoss. `data` is 8-byte aligned.
  Block(SpecRef spec, uint64_t rows, std::byte* data, uint64_t bytes, std::shared_ptr<void> owner);

  const SpecRef& spec() const { return spec_; }
  uint64_t rows() const { return count_; }

  // One tensor a column. A variable leaf `x` is the values `x`, one element after the other, and
  // `x/offsets` (int64, rows + 1); where a later axis differs too `x` is flat, and `x/dims` (int64,
  // rows by axes) has the shapes.
  Example batch() const;
  // One element. Error kInvalidArgument: there is no such row.
  Example row(uint64_t row) const;
  // The same as a row of `out`, which has the block's spec: views, or copies where it is bound.
  // REQUIRED: row < rows().
  void view(uint64_t row, Chunk& out, uint32_t at) const;
  // Some of the rows; the same memory. Error kInvalidArgument: there are no such rows.
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

}  // namespace penstock
