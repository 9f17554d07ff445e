#pragma once

#include <string>
#include <vector>

#include "penstock/memory/example.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// Equally long arrays: element i is row i of each, a leaf by its name. They are neither copied nor
// written to, may be read-only and have any strides, and must not change while they are fed.
class ArraysNode : public Node {
 public:
  // `nest`: ElementSpec::nest() of the elements. `reversed`: by array, whether its numbers stand in
  // the other byte order than the machine's, which elements have; empty: none does. Error
  // kInvalidArgument: no arrays, one without axes, lengths that differ.
  explicit ArraysNode(Example columns, std::string nest = {}, std::vector<bool> reversed = {});

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  Example columns_;
  std::vector<bool> reversed_;
  SpecRef spec_;
};

}  // namespace penstock
