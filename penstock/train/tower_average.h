#pragma once

#include <cstddef>
#include <span>

#include "penstock/train/slab.h"

namespace penstock::train {

// Sums the gradients of several towers into the first one's, and zeroes the others':
//   gradients[0] = sum of weights[i] * gradients[i]
// added up as a tree over tower numbers (0 + 1, 2 + 3, then 0 + 2, ...), so the bits depend on the
// values and the number of towers, and neither on timing nor on how the floats are cut into ranges.
// A tower of weight 0 has no part in it, whatever its gradients are. A weight of 1 multiplies
// nothing.
//
// [begin, end): floats of the slabs; threads may take ranges of their own at the same time.
// Error kInvalidArgument: not one weight for each, layouts that differ, a range outside them.
void add_towers(std::span<const Slab> gradients, std::span<const float> weights, size_t begin,
                size_t end);

}  // namespace penstock::train
