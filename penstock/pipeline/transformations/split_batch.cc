#include "penstock/pipeline/stages/split_batch.h"

#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {

Node::Ref nodes::split_batch(Node::Ref input, uint32_t parts) {
  constexpr uint32_t kMaxParts = 4096;
  if (parts == 0 || parts > kMaxParts) {
    throw Error(Code::kInvalidArgument, "split_batch",
                "parts is " + std::to_string(parts) + "; give 1 to " + std::to_string(kMaxParts));
  }
  return make_node({
      .title = "split_batch()",
      .inputs = {std::move(input)},
      .build =
          [parts](std::vector<Built> inputs, Builder& builder) {
            builder.count_split();
            return inputs[0].with([&](IndexedRef below) {
              return std::make_shared<SplitBatch>(std::move(below), parts);
            });
          },
      .inputs_per_element = 1,
  });
}

}  // namespace penstock
