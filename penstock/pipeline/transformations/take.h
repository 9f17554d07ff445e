#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// The first n elements of each epoch, or all if there are fewer.
class TakeNode : public Node {
 public:
  TakeNode(Ref input, uint64_t n) : Node({std::move(input)}), n_(n) {}

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  uint64_t n_;
};

}  // namespace penstock
