#include "penstock/pipeline/transformations/cardinality.h"

#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

std::string text_of(uint64_t count) {
  return count == kEndless ? "endless" : std::to_string(count);
}

}  // namespace

std::string AssertCardinalityNode::title() const {
  return "assert_cardinality(" + text_of(count_) + ")";
}

Built AssertCardinalityNode::build(std::vector<Built> inputs, Builder&) const {
  const uint64_t length = inputs[0].indexed->length(0);
  if (length != count_) {
    throw Error(Code::kDataLoss, "assert_cardinality",
                "elements: " + text_of(length) + ", and not " + text_of(count_));
  }
  return std::move(inputs[0]);
}

}  // namespace penstock
