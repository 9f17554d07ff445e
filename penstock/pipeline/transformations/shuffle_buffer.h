#pragma once

#include <cstdint>
#include <string>

#include "penstock/pipeline/node.h"

namespace penstock {

// tf.data's shuffle: a buffer of elements, one of which is drawn, each equally likely, whenever one
// is wanted; its place is filled up from the input first. Draw d of an epoch has the address (seed,
// epoch, d). A buffer that is as long as the input shuffles it evenly. Elements that failed wait
// for no draw.
//
// A stream. It copies `buffer` elements; state {"draws", "read", "held": HeldBack's}. Loading one
// repeats the draws on integers, some 50 ns each, and reads again what is in the buffer.
class ShuffleBufferNode : public Node {
 public:
  // Not `reshuffle`: every epoch has the draws of epoch 0. Error kInvalidArgument: buffer is 0.
  ShuffleBufferNode(Ref input, uint64_t seed, uint64_t buffer, bool reshuffle = true);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint64_t seed_, buffer_;
  bool reshuffle_;
};

}  // namespace penstock
