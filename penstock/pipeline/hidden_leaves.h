#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/op.h"
#include "penstock/pipeline/stage.h"

namespace penstock {

// What an operation makes of each element, behind the element's own leaves and under names that no
// leaf of a user's has: so workers make what a stream's stage wants to know of its elements
// (filter's predicate, unique's key), where they make the elements.

// The elements of `input`, each with what `op` makes of it. What goes wrong in `op` is the
// element's failure, in the stage `title`. Error kInvalidArgument: `op` cannot be applied.
IndexedRef with_hidden_leaves(IndexedRef input, OpRef op, uint32_t operation, std::string title);

// Without them; nullptr of nullptr.
SpecRef visible_spec(const SpecRef& spec);

// Takes them apart again. One thread.
class HiddenLeaves {
 public:
  // The rows of `whole` become those of `elements`, which takes what was lost and what is kept, and
  // of `made`: views.
  void split(Chunk& whole, Chunk& elements, Chunk& made);

 private:
  SpecRef whole_, elements_, made_;
};

}  // namespace penstock
