#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// The input's epochs, one after the other: round r of epoch e is epoch e * count + r there, so that
// each is shuffled anew.
class RepeatNode : public Node {
 public:
  // kEndless: for ever. Error kInvalidArgument: count is 0.
  RepeatNode(Ref input, uint64_t count);

  uint64_t count() const { return count_; }
  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  uint64_t count_;
};

}  // namespace penstock
