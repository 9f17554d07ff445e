#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// n elements stacked, whatever their lengths: a leaf of which some axis may differ from element to
// element becomes a ragged column. The last batch of an epoch is short, or left out.
class RaggedBatchNode : public Node {
 public:
  // Error kInvalidArgument: n is 0, or above 2^32 - 1.
  RaggedBatchNode(Ref input, uint64_t n, bool drop_last);

  uint64_t batch_size() const { return n_; }
  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint64_t n_;
  bool drop_;
};

}  // namespace penstock
