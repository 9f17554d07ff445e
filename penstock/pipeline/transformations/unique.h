#pragma once

#include <string>
#include <utility>

#include "penstock/pipeline/node.h"

namespace penstock {

// Each element the first time only that it comes in an epoch: elements are equal if their lengths
// and bytes are. A stream; it keeps 128 bits of each, so that two that differ are taken for equal
// about once in 10^38 pairs. State {"taken": elements}: loading one goes through the pass again.
class UniqueNode : public Node {
 public:
  explicit UniqueNode(Ref input) : Node({std::move(input)}) {}

  std::string title() const override { return "unique()"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }
};

}  // namespace penstock
