#include "penstock/pipeline/transformations/window.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

class Window : public Collated {
 public:
  Window(IndexedRef input, const WindowOptions& options)
      : Collated(std::move(input)),
        size_(options.size),
        shift_(options.shift),
        stride_(options.stride),
        drop_(options.drop_remainder) {}

  uint64_t length(uint64_t base) const override {
    const uint64_t elements = input()->length(base);
    if (elements == kEndless) return kEndless;
    // Elements at which a window may begin.
    const uint64_t reach = drop_ ? (size_ - 1) * stride_ : 0;
    return elements <= reach ? 0 : (elements - reach - 1) / shift_ + 1;
  }
  uint64_t rows(uint64_t window, uint64_t base) const override {
    const uint64_t left = input()->length(base) - window * shift_;
    return std::min(size_, (left - 1) / stride_ + 1);
  }
  uint64_t most_rows() const override { return size_; }
  uint64_t element(uint64_t window, uint64_t row) const override {
    return window * shift_ + row * stride_;
  }

 private:
  uint64_t size_, shift_, stride_;
  bool drop_;
};

}  // namespace

WindowNode::WindowNode(Ref input, const WindowOptions& options)
    : Node({std::move(input)}), options_(options) {
  if (options_.shift == 0) options_.shift = options_.size;
  for (auto [name, value] : {std::pair{"size", options_.size}, std::pair{"shift", options_.shift},
                             std::pair{"stride", options_.stride}}) {
    if (value > 0 && value <= UINT32_MAX) continue;
    throw Error(Code::kInvalidArgument, "window",
                std::string(name) + " is " + std::to_string(value) + "; give 1 to 4294967295");
  }
}

std::string WindowNode::title() const {
  return "window(" + std::to_string(options_.size) + ", shift=" + std::to_string(options_.shift) +
         ", stride=" + std::to_string(options_.stride) +
         (options_.drop_remainder ? ", drop_remainder)" : ")");
}

Built WindowNode::build(std::vector<Built> inputs, Builder&) const {
  return {std::make_shared<Window>(inputs[0].indexed, options_)};
}

}  // namespace penstock
