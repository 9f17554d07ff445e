#pragma once

#include <string>
#include <utility>

#include "penstock/pipeline/node.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock {

// Each element the first time only that it comes in an epoch, or that its key does: what an
// operation makes of it. They are equal if their lengths and bytes are. A stream; it keeps 128 bits
// of each, so that two that differ are taken for equal about once in 10^38 pairs. State {"taken":
// elements}: loading one goes through the pass again.
class UniqueNode : public Node {
 public:
  // `key` nullptr: the element itself.
  explicit UniqueNode(Ref input, OpRef key = nullptr)
      : Node({std::move(input)}), key_(std::move(key)) {}

  std::string title() const override {
    return key_ == nullptr ? "unique()" : "unique(" + key_->title() + ")";
  }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  OpRef key_;
};

}  // namespace penstock
