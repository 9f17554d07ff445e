#pragma once

#include <string>
#include <utility>

#include "penstock/pipeline/node.h"

namespace penstock {

// The rows of each element as elements: all leaves are arrays of one first length, which may differ
// from element to element. A stream; state {"row", "input"}.
class UnbatchNode : public Node {
 public:
  explicit UnbatchNode(Ref input) : Node({std::move(input)}) {}

  std::string title() const override { return "unbatch()"; }
  // Error kInvalidArgument: numbers or strings, as far as elements are known. Else, and where first
  // lengths differ, the element is one that failed.
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }
};

}  // namespace penstock
