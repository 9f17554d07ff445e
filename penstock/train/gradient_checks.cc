#include "penstock/train/gradient_checks.h"

#include <cmath>

#include "penstock/base/error.h"

namespace penstock::train {

std::string first_not_finite(std::span<const float> values, const Shape& shape) {
  size_t at = 0;
  while (at < values.size() && std::isfinite(values[at])) ++at;
  if (at == values.size()) return "";
  const std::string what = std::isnan(values[at]) ? "nan" : values[at] < 0 ? "-inf" : "inf";
  Shape place(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    const auto length = static_cast<size_t>(shape[axis]);
    place[axis] = static_cast<int64_t>(at % length);
    at /= length;
  }
  return "is " + what + (shape.empty() ? "" : " at " + to_string(place));
}

std::string describe_not_finite(const Slab& gradients) {
  for (const Block& block : gradients.layout().blocks()) {
    const std::string found = first_not_finite(gradients.values_of(block), block.shape);
    if (!found.empty()) return "block '" + block.name + "' " + found;
  }
  return "it was written to while it was applied";
}

void check_scale(const char* operation, double scale) {
  if (std::isfinite(scale)) return;
  throw Error(Code::kInvalidArgument, operation,
              "scale is " + std::to_string(scale) + "; it must be finite");
}

void check_gradients(const Slab& parameters, const Slab& gradients) {
  parameters.layout().require_equal(gradients.layout(), "apply", "the gradient");
  if (parameters.values().data() == gradients.values().data()) {
    throw Error(Code::kInvalidArgument, "apply",
                "these are the parameters themselves; gradients go into parameters.gradients()");
  }
}

}  // namespace penstock::train
