#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// n elements stacked, every leaf with one more axis in front. The last batch of an epoch is short,
// or left out. Strings and ragged features become ragged columns; other leaves whose shapes differ
// within a batch are an error that names two elements.
class BatchNode : public Node {
 public:
  // Error kInvalidArgument: n is 0, or above 2^32 - 1.
  BatchNode(Ref input, uint64_t n, bool drop_remainder);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  uint64_t n_;
  bool drop_;
};

}  // namespace penstock
