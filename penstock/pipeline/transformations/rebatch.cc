#include "penstock/pipeline/transformations/rebatch.h"

#include <utility>

#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/transformations/batch.h"
#include "penstock/pipeline/transformations/unbatch.h"

namespace penstock {

RebatchNode::RebatchNode(Ref input, uint64_t n, bool drop_last)
    : Node({std::move(input)}), n_(n), drop_(drop_last) {
  Batch::check(n, "rebatch");
}

std::string RebatchNode::title() const {
  return "rebatch(" + std::to_string(n_) + (drop_ ? ", drop_last)" : ")");
}

Built RebatchNode::build(std::vector<Built> inputs, Builder& builder) const {
  Built rows = UnbatchNode(this->inputs()[0]).build(std::move(inputs), builder);
  return rows.stacked(builder, n_, drop_, [&](IndexedRef input) {
    return std::make_shared<Batch>(std::move(input), n_, drop_);
  });
}

}  // namespace penstock
