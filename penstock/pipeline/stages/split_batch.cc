#include "penstock/pipeline/stages/split_batch.h"

#include <string>

namespace penstock {

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
