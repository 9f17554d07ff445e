#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// A stage's summary of an element: for filter whether the predicate holds, for unique the hash of
// the key. The workers that make the element compute the summary too, and append it to the element
// as a hidden leaf. It always has 16 bytes, so it never makes elements' schemas differ.
using Summary = std::array<std::byte, 16>;

// Summarizes a row of an operation's result; the row is alive. An exception is the element's
// failure.
using Summarize = std::function<Summary(const Chunk& made, uint32_t row)>;

// The elements of `input`, each with the summary of op's result. An error of `op` is the element's
// failure, in the stage `title`. Error kInvalidArgument: `op` cannot be applied.
IndexedRef with_hidden_leaf(IndexedRef input, OpRef op, Summarize summarize, uint32_t operation,
                            std::string title);

// The spec without the hidden leaf; nullptr for nullptr.
SpecRef without_hidden_leaf(const SpecRef& spec);

// Removes the hidden leaf. One thread.
class HiddenLeaf {
 public:
  // Makes the rows of `whole` the rows of `elements`, as views, without the hidden leaf. Moves
  // failures, notes and kept owners.
  void split(Chunk& whole, Chunk& elements);
  static Summary summary(const Chunk& whole, uint32_t row);

 private:
  SpecRef whole_, elements_;
};

}  // namespace penstock
