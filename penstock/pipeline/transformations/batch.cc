#include "penstock/pipeline/transformations/batch.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

class Batch : public Collated {
 public:
  Batch(IndexedRef input, uint64_t n, bool drop) : Collated(std::move(input)), n_(n), drop_(drop) {}

  uint64_t length(uint64_t base) const override {
    const uint64_t elements = input()->length(base);
    if (elements == kEndless) return kEndless;
    return elements / n_ + (!drop_ && elements % n_ != 0);
  }
  uint64_t rows(uint64_t batch, uint64_t base) const override {
    return std::min(input()->length(base) - batch * n_, n_);
  }
  uint64_t most_rows() const override { return n_; }
  uint64_t element(uint64_t batch, uint64_t row) const override { return batch * n_ + row; }

 private:
  uint64_t n_;
  bool drop_;
};

}  // namespace

BatchNode::BatchNode(Ref input, uint64_t n, bool drop_remainder)
    : Node({std::move(input)}), n_(n), drop_(drop_remainder) {
  if (n == 0 || n > UINT32_MAX) {
    throw Error(Code::kInvalidArgument, "batch",
                "batch_size is " + std::to_string(n) + "; give 1 to 4294967295");
  }
}

std::string BatchNode::title() const {
  return "batch(" + std::to_string(n_) + (drop_ ? ", drop_remainder)" : ")");
}

Built BatchNode::build(std::vector<Built> inputs, Builder&) const {
  return {std::make_shared<Batch>(inputs[0].indexed, n_, drop_)};
}

}  // namespace penstock
