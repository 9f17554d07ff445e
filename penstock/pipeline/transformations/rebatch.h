#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// Batches of another size: the rows of the input's elements, n at a time. The last batch of an
// epoch is short, or left out. A stream, as unbatch() and then batch(n).
class RebatchNode : public Node {
 public:
  // Error kInvalidArgument: n is 0, or above 2^32 - 1; and as of UnbatchNode.
  RebatchNode(Ref input, uint64_t n, bool drop_last);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint64_t n_;
  bool drop_;
};

}  // namespace penstock
