#include "penstock/base/error.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {

Node::Ref nodes::prefetch(Node::Ref input, std::optional<uint32_t> batches) {
  if (batches && (*batches == 0 || *batches > 1 << 16)) {
    throw Error(Code::kInvalidArgument, "prefetch",
                "batches is " + std::to_string(*batches) + "; give 1 to 65536");
  }
  return make_node({
      .title = "prefetch(" + (batches ? std::to_string(*batches) : "") + ")",
      .inputs = {std::move(input)},
      .build = [](std::vector<Built> inputs, Builder&) { return inputs[0]; },
      .inputs_per_element = 1,
      .feed_part = Node::FeedPart{.queue = batches},
  });
}

}  // namespace penstock
