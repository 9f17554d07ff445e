#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// (number, element): the position in the epoch, counted from `start`, as int64 leaf "0"; the
// element's leaves are called "1/...", or "1" where it is one value. An element that no int64 can
// number fails; build() refuses what is known to have some.
class EnumerateNode : public Node {
 public:
  explicit EnumerateNode(Ref input, int64_t start = 0) : Node({std::move(input)}), start_(start) {}

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  int64_t start_;
};

}  // namespace penstock
