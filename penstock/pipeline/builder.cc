#include "penstock/pipeline/builder.h"

#include <utility>

namespace penstock {

Built Builder::build(const Node& node) {
  std::vector<Built> inputs;
  inputs.reserve(node.inputs().size());
  for (const Node::Ref& input : node.inputs()) inputs.push_back(build(*input));
  titles_.push_back(node.title());
  return node.build(std::move(inputs), *this);
}

const std::shared_ptr<FilePool>& Builder::pool() {
  if (pool_ == nullptr) pool_ = std::make_shared<FilePool>(files_);
  return pool_;
}

}  // namespace penstock
