#pragma once

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
        : ends_(elements.ends_), first_(ends_.empty() ? 0 : ends_[0]) {}
    Place find(uint64_t row);

   private:
    const std::vector<uint64_t>& ends_;
    const uint64_t first_;  // rows of the first chunk, as of most others
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
