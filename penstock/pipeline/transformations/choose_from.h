#pragma once

#include <string>
#include <vector>

#include "penstock/pipeline/node.h"

namespace penstock {

// tf.data's choose_from_datasets: each element is the next one of the input that the choices'
// element, one int64, numbers. A stream; state {"choices", "inputs"}.
class ChooseFromNode : public Node {
 public:
  // `stop_on_empty`: it is over when an input is chosen that ended; else that choice is passed
  // over. Error kInvalidArgument: there are no inputs. A number that no input has is an element
  // that failed.
  ChooseFromNode(Ref choices, std::vector<Ref> inputs, bool stop_on_empty = true);

  std::string title() const override;
  // Error kInvalidArgument: choices that are no int64, elements that differ in more than lengths,
  // as far as they are known.
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  bool stop_on_empty_;
};

}  // namespace penstock
