#include "penstock/pipeline/plan/node.h"

#include <utility>

#include "penstock/pipeline/element/given.h"

namespace penstock {

Node::Ref make_node(Node node) {
  for (const Node::Ref& input : node.inputs) (void)given(input.get(), "Dataset", "dataset");
  return std::make_shared<const Node>(std::move(node));
}

}  // namespace penstock
