#include <cstring>

#include "penstock/base/error.h"
#include "penstock/pipeline/sources/sources.h"

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
        // Unsigned arithmetic, since a range may span more than INT64_MAX.
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

Node::Ref nodes::range(int64_t begin, int64_t end, int64_t step) {
  if (step == 0) throw Error(Code::kInvalidArgument, "range", "step is 0");
  uint64_t length = 0;
  if (step > 0 && end > begin) {
    const uint64_t span = static_cast<uint64_t>(end) - static_cast<uint64_t>(begin);
    length = (span - 1) / static_cast<uint64_t>(step) + 1;
  } else if (step < 0 && end < begin) {
    const uint64_t span = static_cast<uint64_t>(begin) - static_cast<uint64_t>(end);
    length = (span - 1) / (uint64_t{0} - static_cast<uint64_t>(step)) + 1;
  }
  return make_node({
      .title = "range(" + std::to_string(begin) + ", " + std::to_string(end) +
               (step == 1 ? ")" : ", " + std::to_string(step) + ")"),
      .build = [=](std::vector<Built>, Builder&) -> Built {
        return {std::make_shared<Range>(begin, step, length)};
      },
  });
}

}  // namespace penstock
