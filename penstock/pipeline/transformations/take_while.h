#pragma once

#include <string>
#include <utility>

#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/node.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock {

// The elements in front of the first one for which a predicate does not hold. A stream; state
// {"over", "input"}.
class TakeWhileNode : public Node {
 public:
  // `predicate` as of FilterNode.
  TakeWhileNode(Ref input, OpRef predicate)
      : Node({std::move(input)}),
        predicate_(given(std::move(predicate), "take_while", "operation")) {}

  std::string title() const override { return "take_while(" + predicate_->title() + ")"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  OpRef predicate_;
};

}  // namespace penstock
