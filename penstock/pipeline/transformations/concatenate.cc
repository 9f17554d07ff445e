#include "penstock/pipeline/transformations/concatenate.h"

#include <algorithm>
#include <array>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/inputs.h"

namespace penstock {
namespace {

class Concatenate : public Indexed {
 public:
  explicit Concatenate(std::vector<IndexedRef> inputs)
      : inputs_(std::move(inputs)), spec_(common_spec(inputs_, "concatenate")) {}

  uint64_t length(uint64_t base) const override {
    uint64_t sum = 0;
    for (const IndexedRef& input : inputs_) {
      uint64_t own = input->length(base);
      if (own == kEndless || __builtin_add_overflow(sum, own, &sum)) return kEndless;
    }
    return sum;
  }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return any_costly(inputs_); }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Concatenate& stage, Context& context)
        : stage_(stage), readers_(stage.inputs_, "concatenate", context) {}

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      find_ends(at.base);
      size_t end = 0;
      for (size_t i = 0; i < positions.size(); i = end) {
        auto input = static_cast<size_t>(
            std::upper_bound(ends_.begin(), ends_.end(), positions[i]) - ends_.begin());
        const uint64_t first = input == 0 ? 0 : ends_[input - 1];
        for (; end < positions.size(); ++end) {
          if (positions[end] < first || positions[end] >= ends_[input]) break;
          inside_[end] = positions[end] - first;
        }
        readers_.fetch(input, at, std::span<const uint64_t>(&inside_[i], end - i), out,
                       static_cast<uint32_t>(row + i));
      }
    }

   private:
    void find_ends(uint64_t base) {
      if (!ends_.empty() && base == base_) return;
      base_ = base;
      ends_.clear();
      uint64_t sum = 0;
      for (const IndexedRef& input : stage_.inputs_) {
        if (__builtin_add_overflow(sum, input->length(base), &sum)) sum = kEndless;
        ends_.push_back(sum);
      }
    }

    const Concatenate& stage_;
    InputReaders readers_;
    uint64_t base_ = 0;
    std::vector<uint64_t> ends_;  // of each input, at base_
    std::array<uint64_t, Chunk::kRows> inside_;
  };

  std::vector<IndexedRef> inputs_;
  SpecRef spec_;
};

}  // namespace

ConcatenateNode::ConcatenateNode(std::vector<Ref> inputs) : Node(std::move(inputs)) {
  if (this->inputs().empty()) {
    throw Error(Code::kInvalidArgument, "concatenate", "there are no inputs");
  }
}

std::string ConcatenateNode::title() const {
  return "concatenate(" + std::to_string(inputs().size()) + ")";
}

Built ConcatenateNode::build(std::vector<Built> inputs, Builder&) const {
  return {std::make_shared<Concatenate>(indexed_of(inputs))};
}

}  // namespace penstock
