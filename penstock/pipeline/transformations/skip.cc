#include "penstock/pipeline/transformations/skip.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

class Skip : public IndexMapped {
 public:
  Skip(IndexedRef input, uint64_t n) : IndexMapped(std::move(input)), n_(n) {}

  uint64_t length(uint64_t base) const override {
    const uint64_t all = input()->length(base);
    return all == kEndless ? all : all - std::min(n_, all);
  }
  uint32_t map(At&, std::span<uint64_t> positions) const override {
    for (uint64_t& position : positions) position += n_;
    return static_cast<uint32_t>(positions.size());
  }

 private:
  uint64_t n_;
};

}  // namespace

std::string SkipNode::title() const { return "skip(" + std::to_string(n_) + ")"; }

Built SkipNode::build(std::vector<Built> inputs, Builder&) const {
  return {std::make_shared<Skip>(inputs[0].indexed, n_)};
}

}  // namespace penstock
