#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

// The count of int64 numbers from `start` on; for -2^63 one less, since 2^64 does not fit.
uint64_t numbers_from(int64_t start) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const uint64_t above = kMax - static_cast<uint64_t>(start);
  return above == kEndless ? above : above + 1;
}

Error too_many(int64_t start) {
  return {Code::kInvalidArgument, "enumerate",
          "an int64 counts " + std::to_string(numbers_from(start)) + " elements from start " +
              std::to_string(start) + " on; there are more: give a lower start"};
}

class Numbers : public Indexed {
 public:
  explicit Numbers(int64_t start)
      : start_(start),
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
    explicit Reader(int64_t start) : start_(start), count_(numbers_from(start)) {}
    void fetch(const At&, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
      std::byte* to = out.dense(0) + row * out.stride(0);
      for (uint64_t position : positions) {
        if (position >= count_) {
          out.fail(row, {"", position, std::make_exception_ptr(too_many(start_))});
        }
        const uint64_t number = static_cast<uint64_t>(start_) + position;
        std::memcpy(to, &number, sizeof(number));
        to += out.stride(0);
        ++row;
      }
    }

   private:
    int64_t start_;
    uint64_t count_;
  };

  int64_t start_;
  SpecRef spec_;
};

}  // namespace

Node::Ref nodes::enumerate(Node::Ref input, int64_t start) {
  return make_node({
      .title = start == 0 ? "enumerate()" : "enumerate(start=" + std::to_string(start) + ")",
      .inputs = {std::move(input)},
      .build =
          [start](std::vector<Built> inputs, Builder& builder) {
            const Built built = builder.without_gaps(inputs[0]);
            const auto length =
                built.stream == nullptr ? built.indexed->length(0) : built.stream->length();
            if (length && *length != kEndless && *length / built.per_output > numbers_from(start)) {
              throw too_many(start);
            }
            return built.with([&](IndexedRef below) {
              return zipped({std::make_shared<Numbers>(start), std::move(below)}, {});
            });
          },
      .inputs_per_element = 1,
  });
}

}  // namespace penstock
