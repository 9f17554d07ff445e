#include "penstock/pipeline/transformations/ragged_batch.h"

#include <utility>

#include "penstock/pipeline/transformations/batch.h"

namespace penstock {
namespace {

class RaggedBatch : public Batch {
 public:
  using Batch::Batch;
  bool ragged() const override { return true; }
};

}  // namespace

RaggedBatchNode::RaggedBatchNode(Ref input, uint64_t n, bool drop_last)
    : Node({std::move(input)}), n_(n), drop_(drop_last) {
  Batch::check(n, "ragged_batch");
}

std::string RaggedBatchNode::title() const {
  return "ragged_batch(" + std::to_string(n_) + (drop_ ? ", drop_last)" : ")");
}

Built RaggedBatchNode::build(std::vector<Built> inputs, Builder& builder) const {
  return inputs[0].stacked(builder, n_, drop_, [&](IndexedRef input) {
    return std::make_shared<RaggedBatch>(std::move(input), n_, drop_);
  });
}

}  // namespace penstock
