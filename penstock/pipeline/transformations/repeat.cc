#include "penstock/pipeline/transformations/repeat.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

class Repeat : public IndexMapped {
 public:
  Repeat(IndexedRef input, uint64_t count) : IndexMapped(std::move(input)), count_(count) {}

  uint64_t length(uint64_t base) const override {
    uint64_t once = input()->length(base), all;
    if (once == 0) return 0;
    return __builtin_mul_overflow(once, count_, &all) ? kEndless : all;
  }

  uint32_t map(At& at, std::span<uint64_t> positions) const override {
    const uint64_t once = input()->length(at.base);
    const uint64_t round = positions[0] / once;
    at.epoch = (count_ == kEndless ? 0 : at.epoch * count_) + round;
    const uint64_t begin = round * once;
    for (uint32_t i = 0; i < positions.size(); ++i) {
      uint64_t inside = positions[i] - begin;
      if (positions[i] < begin || inside >= once) return i;
      positions[i] = inside;
    }
    return static_cast<uint32_t>(positions.size());
  }

 private:
  uint64_t count_;
};

}  // namespace

RepeatNode::RepeatNode(Ref input, uint64_t count) : Node({std::move(input)}), count_(count) {
  if (count == 0) throw Error(Code::kInvalidArgument, "repeat", "count is 0; give 1 or more");
}

std::string RepeatNode::title() const {
  return count_ == kEndless ? "repeat()" : "repeat(" + std::to_string(count_) + ")";
}

Built RepeatNode::build(std::vector<Built> inputs, Builder&) const {
  if (count_ == 1) return inputs[0];
  return {std::make_shared<Repeat>(inputs[0].indexed, count_)};
}

}  // namespace penstock
