#pragma once

#include <memory>
#include <string>
#include <utility>

#include "held.h"
#include "penstock/pipeline/node.h"

namespace penstock::python {

// Any object with __len__ and __getitem__: element i is object[i]. The thread that reads it is one
// of Python's, and takes the GIL once per chunk.
class PythonSourceNode : public Node {
 public:
  PythonSourceNode(UserObjectRef object, uint64_t length, std::string title)
      : object_(std::move(object)), length_(length), title_(std::move(title)) {}

  std::string title() const override { return title_; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  UserObjectRef object_;
  uint64_t length_;
  std::string title_;
};

}  // namespace penstock::python
