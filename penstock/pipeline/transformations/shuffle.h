#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// All elements of an epoch in an order that a Bijection keyed (seed, epoch) computes: a global
// shuffle of any length in O(1) memory.
class ShuffleNode : public Node {
 public:
  // Not `reshuffle`: every epoch has the order of epoch 0.
  ShuffleNode(Ref input, uint64_t seed, bool reshuffle = true)
      : Node({std::move(input)}), seed_(seed), reshuffle_(reshuffle) {}

  std::string title() const override;
  // Error kInvalidArgument: an input without end, or of more than 2^62 elements.
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  std::string instead_of_streams() const override { return ": give shuffle a buffer"; }

 private:
  uint64_t seed_;
  bool reshuffle_;
};

}  // namespace penstock
