#pragma once

#include <string>
#include <vector>

#include "penstock/pipeline/node.h"

namespace penstock {

// All elements of the first input, then all of the second, ... Leaves whose lengths differ between
// inputs are of differing length. State, if one of them is a stream: {"which", "input"}.
class ConcatenateNode : public Node {
 public:
  // Error kInvalidArgument: there are no inputs.
  explicit ConcatenateNode(std::vector<Ref> inputs);

  std::string title() const override;
  // Error kInvalidArgument: elements that differ in more than lengths, as far as they are known.
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }
};

}  // namespace penstock
