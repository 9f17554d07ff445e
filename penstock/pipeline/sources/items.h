#pragma once

#include <string>
#include <vector>

#include "penstock/memory/example.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// Elements that are there already. They are neither copied (save those with gaps between their
// values) nor written to, and must not change while they are fed.
class ItemsNode : public Node {
 public:
  // `spec`: what they are, where more is known than names, dtypes and shapes: strings (uint8
  // arrays, to a Tensor), the nest. nullptr: found by looking at all of them; a length that differs
  // is -1. Error kInvalidArgument, which names two elements: they differ in more than lengths.
  explicit ItemsNode(std::vector<Example> elements, SpecRef spec = nullptr);

  std::string title() const override;
  Built build(std::vector<Built> inputs, Builder& builder) const override;

 private:
  std::vector<Example> elements_;
  SpecRef spec_;
};

}  // namespace penstock
