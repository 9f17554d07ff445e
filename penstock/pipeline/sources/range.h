#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// begin, begin + step, ... short of end: int64 numbers, one leaf without a name.
class RangeNode : public Node {
 public:
  // Error kInvalidArgument: step is 0.
  RangeNode(int64_t begin, int64_t end, int64_t step);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  int64_t begin_, end_, step_;
};

}  // namespace penstock
