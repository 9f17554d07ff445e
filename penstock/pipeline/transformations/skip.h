#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// Each epoch without its first n elements. Of a stream those among them that failed are handed on,
// and not counted; state {"skipped", "input"}.
class SkipNode : public Node {
 public:
  SkipNode(Ref input, uint64_t n) : Node({std::move(input)}), n_(n) {}

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint64_t n_;
};

}  // namespace penstock
