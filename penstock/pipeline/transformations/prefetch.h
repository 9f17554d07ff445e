#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// How many batches may be made and not yet taken. At the end of a chain, with nothing but repeat
// around it, it is the feed's queue; elsewhere it does nothing, since all that a ticket needs is
// made ahead anyway.
class PrefetchNode : public Node {
 public:
  // Nothing: as many as the feed finds useful. Error kInvalidArgument: 0, or more than 65536.
  PrefetchNode(Ref input, std::optional<uint32_t> batches);

  const std::optional<uint32_t>& batches() const { return batches_; }
  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  std::optional<uint32_t> batches_;
};

}  // namespace penstock
