#pragma once

#include <cstddef>
#include <vector>

#include "penstock/train/layout.h"

namespace penstock::train {

// Floats of a slab, from `begin` to before `end`.
struct Range {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Cuts a slab into as many ranges as there are shards: contiguous, in order, all of it, none empty,
// each beginning at a multiple of Layout::kAlign. A cut is where a block begins if one does within
// 1/16 of a share of the even place; else it goes through a block. Any thread.
// Error kInvalidArgument: no shards, or more than kMostShards or than the slab has lines of 64
// bytes.
inline constexpr size_t kMostShards = 1024;
std::vector<Range> partition(const Layout& layout, size_t shards);

}  // namespace penstock::train
