#pragma once

#include <functional>
#include <string>
#include <utility>

#include "penstock/memory/example.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// A function from what is carried and an element to what is carried on and another element. What it
// is given are read-only views that are good until it returns; its results may hand them on. It is
// called by one thread at a time. What it throws is the element's failure, and the carry stays.
using Scanning =
    std::function<std::pair<Example, Example>(const Example& carry, const Example& element)>;

// tf.data's scan: an epoch begins with `initial`. A stream; state {"carry": [{"name", "dtype",
// "shape", "data": base64}], "input"}.
class ScanNode : public Node {
 public:
  // `name`: of the function, in titles.
  ScanNode(Ref input, std::string name, Example initial, Scanning function)
      : Node({std::move(input)}),
        name_(std::move(name)),
        initial_(std::move(initial)),
        function_(std::move(function)) {}

  std::string title() const override { return "scan(" + name_ + ")"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  std::string name_;
  Example initial_;
  Scanning function_;
};

}  // namespace penstock
