#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/element/padding.h"

namespace penstock {

// The rows of a batch whose sizes are known only when all of them were made: collected in free
// chunks, then written into a block in one pass. One thread; keeps its chunks from batch to batch.
class Collector {
 public:
  // How elements of different lengths are stacked.
  enum class Lengths : uint8_t {
    kEqual,   // they must not differ, except in what is ragged by declaration (strings, features)
    kRagged,  // what differs becomes ragged
    kPadded,  // they are filled up
    kAny,     // nothing is made of it: the block is no batch
  };
  // `padding` where lengths is kPadded; it outlives the collector.
  // `index_of`: what an element at a position is called in errors; null: by its position.
  using IndexOf = std::function<uint64_t(uint64_t position)>;
  Collector(Scratch& scratch, Lengths lengths, const Padding* padding, IndexOf index_of = nullptr)
      : scratch_(scratch), lengths_(lengths), padding_(padding), index_of_(std::move(index_of)) {}

  void begin(SpecRef spec);  // nullptr: the elements tell
  // A free chunk for the next `rows` elements, whose positions are to be named in errors.
  Chunk& add(std::span<const uint64_t> positions);

  // All are there: finds the batch's spec. Error kInvalidArgument: elements that differ, which says
  // where and how. False: no row is alive, and so nobody knows.
  bool settle();
  const SpecRef& spec() const { return spec_; }  // of the batch's rows
  uint64_t rows() const { return rows_; }        // alive
  // The only row, where that is an object (LeafKind::kObject); else nullptr.
  void* object() const;
  // Of a block with space for `rows`, at least rows(); those beyond are empty.
  BlockLayout layout(uint64_t rows) const;
  // `first`: its first row among the block's, of a part of a batch. REQUIRED: 0, or spec() is
  // fixed.
  void write(const BlockLayout& layout, std::byte* block, uint64_t first = 0) const;
  // A leaf's rows for themselves, in `scratch`, as a ColumnBlock; also one that is fixed, but has
  // axes. Returns its place and bytes.
  std::span<const std::byte> column(size_t leaf) const;
  const std::byte* fixed_column(size_t leaf) const;  // of a fixed leaf, there

 private:
  std::string named(uint64_t position) const;
  void merge_specs();
  void fix_lengths();
  void fix_common_axes(size_t of, Leaf& leaf) const;
  void pad_spec();
  uint64_t values_of(size_t leaf) const;
  void write_fixed(size_t leaf, std::byte* to) const;
  void write_padded(size_t leaf, std::byte* to) const;
  void write_variable(size_t leaf, const Leaf& as, size_t place, const BlockLayout& layout,
                      std::byte* block) const;
  template <class F>
  void each_row(F f) const;

  Scratch& scratch_;
  Lengths lengths_;
  const Padding* padding_;
  IndexOf index_of_;
  std::vector<Padding::Column> padded_;  // by leaf of this batch
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<std::vector<uint64_t>> positions_;
  size_t used_ = 0;
  SpecRef given_;  // that every chunk begins with
  SpecRef spec_;
  uint64_t rows_ = 0;
};

}  // namespace penstock
