#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/node.h"

namespace penstock {

// Every batch in parts, one for each of several devices: as equal as can be, the first ones longer
// by a row where it does not come out even, the last ones empty where there are fewer rows than
// parts. A matter of handing out: nothing is copied, and batches, places and states are those of
// the plan without it. Between it and what stacks, and behind it, only what says where a batch
// comes from may stand (take, repeat, prefetch; without a stream skip, shard and shuffle too): Plan
// finds it there.
class SplitBatchNode : public Node {
 public:
  static constexpr uint32_t kMostParts = 4096;

  // Error kInvalidArgument: 0 parts, or more than that.
  SplitBatchNode(Ref input, uint32_t parts);

  // The number of parts is not in it: a state restores with any other.
  std::string title() const override { return "split_batch()"; }
  Built build(std::vector<Built> inputs, Builder& builder) const override;
  bool takes_streams() const override { return true; }

 private:
  uint32_t parts_;
};

// What a split_batch becomes.
class SplitBatch : public IndexMapped {
 public:
  SplitBatch(IndexedRef input, uint32_t parts) : IndexMapped(std::move(input)), parts_(parts) {}

  uint32_t parts() const { return parts_; }
  uint64_t length(uint64_t base) const override { return input()->length(base); }
  uint32_t map(At&, std::span<uint64_t> positions) const override {
    return static_cast<uint32_t>(positions.size());
  }

 private:
  uint32_t parts_;
};

// The parts of a batch: views of its memory.
std::vector<Block> parts_of(const Block& batch, uint32_t parts);
// The same as one Example: the leaf `x` of part 1 is "1/x", a leaf without a name "1".
Example split_example(const Block& batch, uint32_t parts);

}  // namespace penstock
