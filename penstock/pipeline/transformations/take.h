#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// The first n elements of each epoch, or all if there are fewer. Of a stream those that failed are
// handed on and not counted; state {"taken", "input"}.
class TakeNode : public Node {
 public:
  TakeNode(Ref input, uint64_t n) : Node({std::move(input)}), n_(n) {}

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint64_t n_;
};

}  // namespace penstock
