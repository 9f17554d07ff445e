#include "penstock/pipeline/sources/range.h"

#include <cstring>

#include "penstock/base/error.h"

namespace penstock {
namespace {

class Range : public Indexed {
 public:
  Range(int64_t begin, int64_t step, uint64_t length)
      : begin_(begin),
        step_(step),
        length_(length),
        spec_(std::make_shared<ElementSpec>(
            std::vector<Leaf>{{"", LeafKind::kDense, DType::kInt64, {}}})) {}

  uint64_t length(uint64_t) const override { return length_; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context&) const override {
    return std::make_unique<Reader>(*this);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(const Range& range) : range_(range) {}
    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      std::byte* to = out.dense(0) + row * out.stride(0);
      for (uint64_t position : positions) {
        // Unsigned, for a range may be longer than int64 reaches.
        uint64_t number =
            static_cast<uint64_t>(range_.begin_) + position * static_cast<uint64_t>(range_.step_);
        std::memcpy(to, &number, sizeof(number));
        to += out.stride(0);
      }
    }

   private:
    const Range& range_;
  };

  int64_t begin_, step_;
  uint64_t length_;
  SpecRef spec_;
};

}  // namespace

RangeNode::RangeNode(int64_t begin, int64_t end, int64_t step)
    : begin_(begin), end_(end), step_(step) {
  if (step == 0) throw Error(Code::kInvalidArgument, "range", "step is 0");
}

std::string RangeNode::title() const {
  std::string text = "range(" + std::to_string(begin_) + ", " + std::to_string(end_);
  return text + (step_ == 1 ? ")" : ", " + std::to_string(step_) + ")");
}

Built RangeNode::build(std::vector<Built>, Builder&) const {
  uint64_t length = 0;
  if (step_ > 0 && end_ > begin_) {
    uint64_t span = static_cast<uint64_t>(end_) - static_cast<uint64_t>(begin_);
    length = (span - 1) / static_cast<uint64_t>(step_) + 1;
  } else if (step_ < 0 && end_ < begin_) {
    uint64_t span = static_cast<uint64_t>(begin_) - static_cast<uint64_t>(end_);
    length = (span - 1) / (uint64_t{0} - static_cast<uint64_t>(step_)) + 1;
  }
  return {std::make_shared<Range>(begin_, step_, length)};
}

}  // namespace penstock
