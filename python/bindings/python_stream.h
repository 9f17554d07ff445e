#pragma once

#include <memory>
#include <string>

#include "numpy_api.h"
#include "penstock/pipeline/node.h"

namespace penstock::python {

// What a generator function yields, or any callable whose result can be iterated over: called anew
// for each epoch, and to go back to a place. It runs on one of Python's threads, in the consumer's
// process, some elements ahead.
class PythonStreamNode : public Node {
 public:
  // With the GIL held.
  PythonStreamNode(PyObject* function, std::string title);

  std::string title() const override { return title_; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  std::shared_ptr<void> function_;
  std::string title_;
};

}  // namespace penstock::python
