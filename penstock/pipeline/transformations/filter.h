#pragma once

#include <functional>
#include <string>

#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/node.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock {

// The elements for which a predicate holds, in their order. A stream.
class FilterNode : public Node {
 public:
  // `predicate` makes one boolean or number of an element, as any operation of map; 0 is false.
  FilterNode(Ref input, OpRef predicate)
      : Node({std::move(input)}), predicate_(given(std::move(predicate), "filter", "operation")) {}

  std::string title() const override { return "filter(" + predicate_->title() + ")"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  OpRef predicate_;
};

}  // namespace penstock
