#include "penstock/pipeline/transformations/take.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

class Take : public IndexMapped {
 public:
  Take(IndexedRef input, uint64_t n) : IndexMapped(std::move(input)), n_(n) {}

  uint64_t length(uint64_t base) const override { return std::min(n_, input()->length(base)); }
  uint32_t map(At&, std::span<uint64_t> positions) const override {
    return static_cast<uint32_t>(positions.size());
  }

 private:
  uint64_t n_;
};

}  // namespace

std::string TakeNode::title() const { return "take(" + std::to_string(n_) + ")"; }

Built TakeNode::build(std::vector<Built> inputs, Builder&) const {
  return {std::make_shared<Take>(inputs[0].indexed, n_)};
}

}  // namespace penstock
