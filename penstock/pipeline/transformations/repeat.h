#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// The input's epochs, one after the other: round r of epoch e is epoch e * count + r there, so that
// each is shuffled anew. An endless one of a stream ends with a round that has no elements; state
// {"round", "input"}.
class RepeatNode : public Node {
 public:
  // kEndless: for ever. Error kInvalidArgument: count is 0.
  RepeatNode(Ref input, uint64_t count);

  uint64_t count() const { return count_; }
  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint64_t count_;
};

}  // namespace penstock
