#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// There are just that many elements in an epoch, or, with kEndless, no end of them.
class AssertCardinalityNode : public Node {
 public:
  AssertCardinalityNode(Ref input, uint64_t count) : Node({std::move(input)}), count_(count) {}

  std::string title() const override;
  bool takes_streams() const override { return true; }
  // Error kDataLoss: there are more or fewer; says how many. Of a stream that is found out at its
  // end, and raised there.
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  uint64_t count_;
};

}  // namespace penstock
