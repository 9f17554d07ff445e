#include "penstock/pipeline/transformations/prefetch.h"

#include <utility>

#include "penstock/base/error.h"

namespace penstock {

PrefetchNode::PrefetchNode(Ref input, std::optional<uint32_t> batches)
    : Node({std::move(input)}), batches_(batches) {
  if (batches && (*batches == 0 || *batches > 1 << 16)) {
    throw Error(Code::kInvalidArgument, "prefetch",
                "batches is " + std::to_string(*batches) + "; give 1 to 65536");
  }
}

std::string PrefetchNode::title() const {
  return batches_ ? "prefetch(" + std::to_string(*batches_) + ")" : "prefetch()";
}

Built PrefetchNode::build(std::vector<Built> inputs, Builder&) const { return inputs[0]; }

}  // namespace penstock
