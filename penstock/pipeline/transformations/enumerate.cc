#include "penstock/pipeline/transformations/enumerate.h"

#include <cstring>
#include <utility>
#include <vector>

#include "penstock/pipeline/transformations/zip.h"

namespace penstock {
namespace {

class Numbers : public Indexed {
 public:
  explicit Numbers(int64_t start)
      : start_(static_cast<uint64_t>(start)),
        spec_(std::make_shared<ElementSpec>(
            std::vector<Leaf>{{"", LeafKind::kDense, DType::kInt64, {}}})) {}

  uint64_t length(uint64_t) const override { return kEndless; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return false; }
  std::unique_ptr<IndexedReader> reader(Context&) const override {
    return std::make_unique<Reader>(start_);
  }

 private:
  class Reader : public IndexedReader {
   public:
    explicit Reader(uint64_t start) : start_(start) {}
    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      std::byte* to = out.dense(0) + row * out.stride(0);
      for (uint64_t position : positions) {
        uint64_t number = start_ + position;
        std::memcpy(to, &number, sizeof(number));
        to += out.stride(0);
      }
    }

   private:
    uint64_t start_;
  };

  uint64_t start_;
  SpecRef spec_;
};

}  // namespace

std::string EnumerateNode::title() const {
  return start_ == 0 ? "enumerate()" : "enumerate(start=" + std::to_string(start_) + ")";
}

Built EnumerateNode::build(std::vector<Built> inputs, Builder&) const {
  return inputs[0].with([&](IndexedRef input) {
    return zipped({std::make_shared<Numbers>(start_), std::move(input)}, {});
  });
}

}  // namespace penstock
