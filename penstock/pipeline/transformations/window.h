#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

struct WindowOptions {
  uint64_t size = 1;
  uint64_t shift = 0;   // from a window's first element to the next one's; 0: size
  uint64_t stride = 1;  // from an element to the next within a window
  bool drop_last = false;
};

// Windows over the elements, stacked as by batch: window p has elements p * shift + j * stride for
// j below size. Those at the end, for which there are fewer, are short, or left out.
// Over a stream windows are stacked in order, by whoever goes through it.
class WindowNode : public Node {
 public:
  // Error kInvalidArgument: size or stride is 0, or one of them above 2^32 - 1.
  WindowNode(Ref input, const WindowOptions& options);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  WindowOptions options_;
};

}  // namespace penstock
