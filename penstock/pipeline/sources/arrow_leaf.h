#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/io/arrow.h"
#include "penstock/memory/tensor.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/element/scratch.h"

namespace penstock {

// A leaf of the elements, and its place in an Arrow schema.
struct ArrowLeaf {
  Leaf leaf;
  std::vector<size_t> structs;   // children from the chunk to the column, through structs
  bool dictionary = false;       // the column is dictionary-encoded
  std::vector<ArrowType> lists;  // of lists, from the outermost
  ArrowType value;               // of a value, or of a list's innermost item
  bool item_dictionary = false;  // the innermost items are dictionary-encoded
  DType index = DType::kInt32;   // of indices into a dictionary
};

// The leaves of a schema: numbers, bools, strings and byte strings; lists of numbers and bools, of
// fixed or varying lengths; dictionaries of these; structs as dicts. `spec` is set to the spec of
// an element. Error kInvalidArgument, which names the column, its type and a remedy: another type.
std::vector<ArrowLeaf> arrow_leaves(const ArrowField& schema, SpecRef& spec);

// The rows of one leaf in one chunk. Refers to both. Immutable: any thread.
class ArrowRows {
 public:
  ArrowRows(const ArrowLeaf& leaf, const ArrowColumn& chunk);

  // The value of row 0 if all rows are in the layout of elements, one after the other; else
  // nullptr. Only for fixed leaves.
  const std::byte* plain() const { return plain_; }

  // Finds the value of a row: where it lies, or a copy if its layout is not that of elements. The
  // copy is in `to`, or in `scratch` if `to` is nullptr. Sets `dims` to the shape of a variable
  // leaf. `fill` replaces nulls: the value of a fixed leaf, string or byte string; an item of
  // another variable leaf, whose null rows become empty; nullptr: a null is an error.
  // Errors, which name the leaf and the row by its number `shown`: kInvalidArgument (null; inner
  // lists of different lengths), kDataLoss (an index or offset out of range, text that is not
  // UTF-8). REQUIRED: row is below the chunk's length.
  const std::byte* read(int64_t row, uint64_t shown, const Tensor* fill, std::byte* to,
                        Scratch& scratch, std::span<int64_t> dims) const;

 private:
  struct Bits {
    const std::byte* bits;
    int64_t first;
  };
  struct Range {  // of items of the innermost column
    int64_t begin, end;
  };
  class Reading;

  void find_plain();

  const ArrowLeaf& leaf_;
  std::vector<Bits> nulls_;                // of structs and of the column
  int64_t first_ = 0;                      // row 0 is this item of the column
  const ArrowColumn* indices_ = nullptr;   // of a dictionary-encoded column
  std::vector<const ArrowColumn*> lists_;  // the column first
  const ArrowColumn* values_ = nullptr;
  const std::byte* plain_ = nullptr;
};

}  // namespace penstock
