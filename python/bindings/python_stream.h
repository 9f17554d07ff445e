#pragma once

#include <memory>
#include <string>
#include <utility>

#include "held.h"
#include "penstock/pipeline/node.h"

namespace penstock::python {

// What a generator function yields, or any callable whose result can be iterated over: called anew
// for each epoch, and to go back to a place. It runs on one of Python's threads, in the consumer's
// process, some elements ahead.
class PythonStreamNode : public Node {
 public:
  PythonStreamNode(UserObjectRef function, std::string title)
      : function_(std::move(function)), title_(std::move(title)) {}

  std::string title() const override { return title_; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  UserObjectRef function_;
  std::string title_;
};

}  // namespace penstock::python
