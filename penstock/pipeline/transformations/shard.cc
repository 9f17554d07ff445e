#include "penstock/pipeline/transformations/shard.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/builder.h"

namespace penstock {
namespace {

class Shard : public IndexMapped {
 public:
  Shard(IndexedRef input, uint32_t rank, uint32_t world, Remainder remainder)
      : IndexMapped(std::move(input)), rank_(rank), world_(world), remainder_(remainder) {}

  uint64_t length(uint64_t base) const override {
    const uint64_t all = input()->length(0);
    if (all == kEndless) return all;
    const uint64_t left = all - std::min(base, all);
    const uint64_t over = left % world_;
    switch (remainder_) {
      case Remainder::kKeep:
        return left / world_ + (rank_ < over);
      case Remainder::kDrop:
        return left / world_;
      case Remainder::kPad:
        return left / world_ + (over != 0);
    }
    return 0;
  }

  uint32_t map(At& at, std::span<uint64_t> positions) const override {
    for (uint64_t& position : positions) position = at.base + position * world_ + rank_;
    at.base = 0;
    if (remainder_ == Remainder::kPad) {
      const uint64_t all = input()->length(0);
      for (uint64_t& position : positions) {
        if (position >= all) position %= all;
      }
    }
    return static_cast<uint32_t>(positions.size());
  }

 private:
  uint64_t rank_, world_;
  Remainder remainder_;
};

}  // namespace

ShardNode::ShardNode(Ref input, uint32_t rank, uint32_t world, Remainder remainder)
    : Node({std::move(input)}), rank_(rank), world_(world), remainder_(remainder) {
  if (world == 0) throw Error(Code::kInvalidArgument, "shard", "world is 0; give 1 or more");
  if (rank >= world) {
    throw Error(Code::kInvalidArgument, "shard",
                "rank is " + std::to_string(rank) + ", which must be below world, " +
                    std::to_string(world));
  }
}

std::string ShardNode::title() const {
  switch (remainder_) {
    case Remainder::kKeep:
      break;
    case Remainder::kDrop:
      return "shard(drop)";
    case Remainder::kPad:
      return "shard(pad)";
  }
  return "shard()";
}

Built ShardNode::build(std::vector<Built> inputs, Builder& builder) const {
  builder.set_sharded({world_, inputs[0].indexed->length(0)});
  return {std::make_shared<Shard>(inputs[0].indexed, rank_, world_, remainder_)};
}

}  // namespace penstock
