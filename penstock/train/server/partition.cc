#include "penstock/train/server/partition.h"

#include <algorithm>
#include <string>

#include "penstock/base/error.h"

namespace penstock::train {

std::vector<Range> partition(const Layout& layout, size_t shards) {
  constexpr size_t kLine = Layout::kAlign;
  const size_t lines = (layout.floats() + kLine - 1) / kLine;
  if (shards == 0 || shards > kMostShards || shards > lines) {
    throw Error(Code::kInvalidArgument, "partition",
                std::to_string(shards) + " shards for " + std::to_string(layout.floats()) +
                    " floats; there are 1 to " + std::to_string(std::min(kMostShards, lines)));
  }
  const size_t slack = layout.floats() / shards / 16;
  std::vector<Range> ranges(shards);
  size_t begin = 0;
  for (size_t i = 0; i < shards; ++i) {
    // What is left is spread anew, so that a cut that moved burdens nobody in particular.
    const size_t left = shards - i;
    size_t end = layout.floats();
    if (left > 1) {
      const size_t even = begin + (layout.floats() - begin) / left;
      end = std::max(even / kLine * kLine, begin + kLine);
      const auto& blocks = layout.blocks();
      const auto after = std::ranges::lower_bound(blocks, even, {}, &Block::offset);
      size_t best = slack + 1;
      auto consider = [&](size_t start) {
        const size_t off = start > even ? start - even : even - start;
        const size_t lines_after = (layout.floats() - start + kLine - 1) / kLine;
        if (start > begin && off < best && lines_after >= left - 1) {
          best = off;
          end = start;
        }
      };
      if (after != blocks.end()) consider(after->offset);
      if (after != blocks.begin()) consider((after - 1)->offset);
    }
    ranges[i] = {begin, end};
    begin = end;
  }
  return ranges;
}

}  // namespace penstock::train
