#pragma once

#include <string>

#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/node.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock {

// Every element through an operation.
class MapNode : public Node {
 public:
  MapNode(Ref input, OpRef op)
      : Node({std::move(input)}), op_(given(std::move(op), "map", "operation")) {}

  std::string title() const override { return "map(" + op_->title() + ")"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  OpRef op_;
};

}  // namespace penstock
