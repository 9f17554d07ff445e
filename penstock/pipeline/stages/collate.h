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

// Collects the rows of a batch whose sizes are known only after all of them are made: first in free
// chunks, which are then written into a block in one pass. One thread; reuses its chunks for the
// next batch.
class Collector {
 public:
  // How elements of different lengths are stacked.
  enum class Lengths : uint8_t {
    kEqual,   // an error, except for leaves that are declared ragged (strings, features)
    kRagged,  // leaves whose lengths differ become ragged
    kPadded,  // rows are padded
    kAny,     // lengths are not checked: the block is not delivered as a batch
  };
  // `padding`: for kPadded; it must outlive the collector. `index_of`: gives the number that errors
  // name an element by; null: its position.
  using IndexOf = std::function<uint64_t(uint64_t position)>;
  Collector(Scratch& scratch, Lengths lengths, const Padding* padding, IndexOf index_of = nullptr)
      : scratch_(scratch), lengths_(lengths), padding_(padding), index_of_(std::move(index_of)) {}

  void begin(SpecRef spec);  // nullptr: the spec is inferred from the elements
  // A free chunk for the next `rows` elements. Errors name `positions`.
  Chunk& add(std::span<const uint64_t> positions);

  // Call it after all rows are made: determines the batch's spec. Error kInvalidArgument, with the
  // position and the difference: elements differ. False: no row is alive, so there is no spec.
  bool settle();
  const SpecRef& spec() const { return spec_; }  // of the batch's rows
  uint64_t rows() const { return rows_; }        // rows that are alive
  // The address of the only row if it is an object (LeafKind::kObject); else nullptr.
  void* object() const;
  // The layout of a block with `rows` rows, at least rows(); the rows beyond rows() are empty.
  BlockLayout layout(uint64_t rows) const;
  // `first`: index of the first collected row in the block, for a part of a batch. REQUIRED: 0, or
  // spec() is fixed.
  void write(const BlockLayout& layout, std::byte* block, uint64_t first = 0) const;
  // Writes the rows of one leaf as a ColumnBlock into scratch memory, and returns it. The leaf may
  // be fixed, but must have axes.
  std::span<const std::byte> column(size_t leaf) const;
  const std::byte* fixed_column(size_t leaf) const;  // the rows of a fixed leaf, in scratch memory
  // Calls f(chunk, row in the chunk, position) for every row that is alive, in order.
  template <class F>
  void each_row(F f) const {
    for (size_t c = 0; c < used_; ++c) {
      const Chunk& chunk = *chunks_[c];
      for (uint64_t alive = chunk.alive(); alive != 0; alive &= alive - 1) {
        auto row = static_cast<uint32_t>(__builtin_ctzll(alive));
        f(chunk, row, positions_[c][row]);
      }
    }
  }

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
  Scratch& scratch_;
  Lengths lengths_;
  const Padding* padding_;
  IndexOf index_of_;
  std::vector<Padding::Column> padded_;  // by leaf, for this batch
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<std::vector<uint64_t>> positions_;
  size_t used_ = 0;
  SpecRef given_;  // the initial spec of each chunk
  SpecRef spec_;
  uint64_t rows_ = 0;
};

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
