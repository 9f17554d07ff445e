#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// What a stream's stage wants to know of an element (filter: whether its predicate holds; unique:
// the hash of its key), made by the workers that make the element, and carried as one leaf behind
// its own: always 16 bytes, so that what is known of one element is like that of any other.
using Summary = std::array<std::byte, 16>;

// Of a row of what an operation made, which is alive. What it throws is the element's failure.
using Summarize = std::function<Summary(const Chunk& made, uint32_t row)>;

// The elements of `input`, each with the summary of what `op` makes of it. What goes wrong in `op`
// is the element's failure, in the stage `title`. Error kInvalidArgument: `op` cannot be applied.
IndexedRef with_hidden_leaf(IndexedRef input, OpRef op, Summarize summarize, uint32_t operation,
                            std::string title);

// Of such elements: the spec without the leaf; nullptr of nullptr.
SpecRef without_hidden_leaf(const SpecRef& spec);

// Takes it off. One thread.
class HiddenLeaf {
 public:
  // The rows of `whole` become those of `elements`, which takes what was lost and what is kept:
  // views.
  void split(Chunk& whole, Chunk& elements);
  static Summary summary(const Chunk& whole, uint32_t row);

 private:
  SpecRef whole_, elements_;
};

}  // namespace penstock
