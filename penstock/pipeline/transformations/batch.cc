#include "penstock/pipeline/transformations/batch.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

void Batch::check(uint64_t n, const std::string& operation) {
  if (n > 0 && n <= UINT32_MAX) return;
  throw Error(Code::kInvalidArgument, operation,
              "batch_size is " + std::to_string(n) + "; give 1 to 4294967295");
}

uint64_t Batch::length(uint64_t base) const {
  const uint64_t elements = input()->length(base);
  if (elements == kEndless) return kEndless;
  return elements / n_ + (!drop_ && elements % n_ != 0);
}

uint64_t Batch::rows(uint64_t batch, uint64_t base) const {
  return std::min(input()->length(base) - batch * n_, n_);
}

BatchNode::BatchNode(Ref input, uint64_t n, bool drop_last)
    : Node({std::move(input)}), n_(n), drop_(drop_last) {
  Batch::check(n, "batch");
}

std::string BatchNode::title() const {
  return "batch(" + std::to_string(n_) + (drop_ ? ", drop_last)" : ")");
}

Built BatchNode::build(std::vector<Built> inputs, Builder& builder) const {
  return inputs[0].stacked(builder, n_, drop_, [&](IndexedRef input) {
    return std::make_shared<Batch>(std::move(input), n_, drop_);
  });
}

}  // namespace penstock
