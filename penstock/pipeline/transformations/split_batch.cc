#include "penstock/pipeline/transformations/split_batch.h"

#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {

Node::Ref nodes::split_batch(Node::Ref input, uint32_t parts) {
  constexpr uint32_t kMostParts = 4096;
  if (parts == 0 || parts > kMostParts) {
    throw Error(Code::kInvalidArgument, "split_batch",
                "parts is " + std::to_string(parts) + "; give 1 to " + std::to_string(kMostParts));
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
      .elements_each = 1,
  });
}

std::vector<Block> parts_of(const Block& batch, uint32_t parts) {
  std::vector<Block> all;
  const uint64_t each = batch.rows() / parts, longer = batch.rows() % parts;
  uint64_t begin = 0;
  for (uint32_t part = 0; part < parts; ++part) {
    const uint64_t end = begin + each + (part < longer);
    all.push_back(batch.rows(begin, end));
    begin = end;
  }
  return all;
}

Example split_example(const Block& batch, uint32_t parts) {
  const auto& leaves = batch.spec()->leaves();
  const bool value = leaves.size() == 1 && leaves[0].name.empty();
  Example split;
  uint32_t number = 0;
  for (const Block& part : parts_of(batch, parts)) {
    const std::string front = std::to_string(number++) + (value ? "" : "/");
    for (const auto& [name, tensor] : part.batch()) split.set(front + name, tensor);
  }
  return split;
}

}  // namespace penstock
