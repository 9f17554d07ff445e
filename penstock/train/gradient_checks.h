#pragma once

#include <span>
#include <string>

#include "penstock/train/slab.h"

namespace penstock::train {

// "is nan at (3, 4)": of the first value that is not finite; "" if all are. `shape` is theirs.
std::string first_not_finite(std::span<const float> values, const Shape& shape);

// The same of a slab of gradients that was found not to be finite, with the block's name.
std::string describe_not_finite(const Slab& gradients);

// Error kInvalidArgument if `scale` is not finite.
void check_scale(const char* operation, double scale);

// Error kInvalidArgument unless `gradients` is another slab of the parameters' layout.
void check_gradients(const Slab& parameters, const Slab& gradients);

}  // namespace penstock::train
