#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/node.h"

namespace penstock {

// tf.data's sample_from_datasets: each element is the next one of an input that is drawn, as likely
// as its weight says among those that have elements left. Draw d of an epoch has the address (seed,
// epoch, d). A stream; state {"draws", "inputs"}.
class SampleFromNode : public Node {
 public:
  // `weights`: none, and then all are equal, or one for each input. Not `stop_on_empty`: an input
  // that ended is left out, until all have. Error kInvalidArgument: there are no inputs, another
  // number of weights, one that is negative or not finite, or none above 0.
  SampleFromNode(std::vector<Ref> inputs, std::vector<double> weights, uint64_t seed,
                 bool stop_on_empty = false);

  std::string title() const override;
  // Error kInvalidArgument: elements that differ in more than lengths, as far as they are known.
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  std::vector<double> weights_;
  uint64_t seed_;
  bool stop_on_empty_;
};

}  // namespace penstock
