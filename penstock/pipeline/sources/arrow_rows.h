#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/arrow.h"
#include "penstock/memory/example.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/sources/arrow_leaf.h"

namespace penstock {

// The rows of an Arrow table as elements. Immutable: any thread.
class ArrowElements {
 public:
  struct Place {
    size_t chunk = 0;
    uint64_t row = 0;  // in the chunk
  };

  // Errors of arrow_leaves().
  explicit ArrowElements(std::shared_ptr<const ArrowTable> table);
  ArrowElements(const ArrowElements&) = delete;
  ArrowElements& operator=(const ArrowElements&) = delete;

  const SpecRef& spec() const { return spec_; }
  uint64_t length() const { return ends_.empty() ? 0 : ends_.back(); }
  // The rows of a leaf in a chunk.
  const ArrowRows& rows(size_t leaf, size_t chunk) const { return chunks_[leaf][chunk]; }
  // All rows of a leaf only have to be copied.
  bool plain(size_t leaf) const;
  // ArrowRows::plain() of each chunk.
  std::vector<const std::byte*> first_rows(size_t leaf) const;

  // Finds the places of rows; quickly if the next row lies in the same chunk. One thread.
  class Finder {
   public:
    explicit Finder(const ArrowElements& elements)
        : ends_(elements.ends_),
          chunks_of_row_(ends_.empty() || ends_[0] == 0 ? 0 : 1 / static_cast<double>(ends_[0])) {}

    Place find(uint64_t row) {
      if (row >= begin_ && row < ends_[chunk_]) return {chunk_, row - begin_};
      // Most chunks are as long as the first one. A division takes longer.
      const double guess = static_cast<double>(static_cast<int64_t>(row)) * chunks_of_row_;
      chunk_ = std::min(static_cast<size_t>(static_cast<int64_t>(guess)), ends_.size() - 1);
      begin_ = chunk_ == 0 ? 0 : ends_[chunk_ - 1];
      if (row < begin_ || row >= ends_[chunk_]) search(row);
      return {chunk_, row - begin_};
    }

   private:
    void search(uint64_t row);

    const std::vector<uint64_t>& ends_;
    const double chunks_of_row_;
    size_t chunk_ = 0;
    uint64_t begin_ = 0;
  };

 private:
  std::shared_ptr<const ArrowTable> table_;
  SpecRef spec_;
  std::vector<ArrowLeaf> leaves_;
  std::vector<uint64_t> ends_;                  // of each chunk, in rows
  std::vector<std::vector<ArrowRows>> chunks_;  // by leaf
};

// Puts rows of tables with one spec into chunks. One thread.
class ArrowPutter {
 public:
  // `fills`: of arrow_fills(); outlive this, as `scratch` does.
  ArrowPutter(const std::vector<Tensor>& fills, Scratch& scratch)
      : fills_(fills), scratch_(scratch) {}

  // Puts a leaf of the row at `place` into row `row` of `out`. Errors of ArrowRows::read(), which
  // name the row as `shown`. `dense`: of a fixed leaf, the value is copied to out.dense(leaf);
  // otherwise it is a view if its layout in the table is that of elements.
  void put(const ArrowElements& from, size_t leaf, const ArrowElements::Place& place,
           uint64_t shown, Chunk& out, uint32_t row, bool dense = false);

 private:
  const std::vector<Tensor>& fills_;
  Scratch& scratch_;
  std::vector<int64_t> dims_;
};

// The values for nulls, by leaf; not defined: none. Error kInvalidArgument: a value for no leaf, or
// of another dtype or shape.
std::vector<Tensor> arrow_fills(const Example& fills, const ElementSpec& spec);

}  // namespace penstock
