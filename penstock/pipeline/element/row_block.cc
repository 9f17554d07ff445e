#include "penstock/pipeline/element/row_block.h"

#include <cstring>
#include <vector>

namespace penstock {
namespace {

uint64_t values_in(std::span<const int64_t> shape) {
  uint64_t values = 1;
  for (int64_t length : shape) values *= static_cast<uint64_t>(length);
  return values;
}

}  // namespace

BlockLayout row_layout(const Chunk& in, uint32_t row) {
  std::vector<uint64_t> value_bytes;
  const auto leaves = in.spec()->leaves();
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i].fixed()) {
      value_bytes.push_back(values_in(in.shape(i, row)) * size_of(leaves[i].dtype));
    }
  }
  return BlockLayout(*in.spec(), 1, value_bytes);
}

void write_row(const Chunk& in, uint32_t row, const BlockLayout& layout, std::byte* to) {
  std::memset(to, 0, layout.bytes());
  const auto leaves = in.spec()->leaves();
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    const std::byte* from = in.at(i, row);
    if (leaf.fixed()) {
      const uint64_t bytes = in.row_bytes(i);
      if (bytes > 0) {
        std::memcpy(layout.fixed().row(to, layout.fixed_place(i), 0), from, bytes);
      }
      continue;
    }
    const auto shape = in.shape(i, row);
    const uint64_t values = values_in(shape);
    const int64_t steps = leaf.deep() ? static_cast<int64_t>(values) : shape[0];
    std::memcpy(to + layout.offsets(i) + sizeof(int64_t), &steps, sizeof(steps));
    if (leaf.deep()) std::memcpy(to + layout.dims(i), shape.data(), shape.size_bytes());
    if (values > 0) std::memcpy(to + layout.values(i), from, values * size_of(leaf.dtype));
  }
}

}  // namespace penstock
