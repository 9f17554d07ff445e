#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

struct ShuffleBlocksOptions {
  uint64_t seed = 0;
  uint64_t block = 1;     // consecutive elements that stay near each other
  uint64_t window = 1;    // blocks whose elements are mixed
  bool reshuffle = true;  // false: every epoch has the order of epoch 0
};

// An epoch in an order that reads its source almost in sequence: blocks of consecutive elements
// come in random order, and within each `window` of them all elements are mixed. The elements that
// are left over, too few for a block, are a short one, at a random place. O(1) memory and time.
class ShuffleBlocksNode : public Node {
 public:
  // Error kInvalidArgument: block or window is 0.
  ShuffleBlocksNode(Ref input, const ShuffleBlocksOptions& options);

  std::string title() const override;
  // Error kInvalidArgument: an input without end, or of more than 2^62 elements.
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  ShuffleBlocksOptions options_;
};

}  // namespace penstock
