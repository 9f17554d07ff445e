#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/node.h"

namespace penstock {

// `block` elements of each of `cycle` inputs in turn. The order is that of tf.data's interleave: an
// input is found to have ended when its turn comes and it has no more, which ends the turn; the
// next input that was not begun yet takes its place when the turn comes round again.
class InterleaveNode : public Node {
 public:
  static constexpr size_t kMostInputs = 65536;

  // Error kInvalidArgument: no inputs or more than kMostInputs; cycle or block is 0.
  InterleaveNode(std::vector<Ref> inputs, uint64_t cycle, uint64_t block);

  std::string title() const override;
  // Error kInvalidArgument: an input without end, if all are indexed; elements that differ in more
  // than lengths.
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint64_t cycle_, block_;
};

}  // namespace penstock
