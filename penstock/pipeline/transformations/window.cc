#include "penstock/pipeline/transformations/window.h"

#include <algorithm>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/transformations/window_stream.h"

namespace penstock {
namespace {

class Window : public Collated {
 public:
  Window(IndexedRef input, const WindowOptions& options)
      : Collated(std::move(input)), options_(options) {}

  uint64_t length(uint64_t base) const override {
    return windows_over(input()->length(base), options_);
  }
  uint64_t rows(uint64_t window, uint64_t base) const override {
    const uint64_t left = input()->length(base) - window * options_.shift;
    return std::min(options_.size, (left - 1) / options_.stride + 1);
  }
  uint64_t most_rows() const override { return options_.size; }
  uint64_t element(uint64_t window, uint64_t row, uint64_t) const override {
    return window * options_.shift + row * options_.stride;
  }

 private:
  WindowOptions options_;
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
         (options_.drop_last ? ", drop_last)" : ")");
}

Built WindowNode::build(std::vector<Built> inputs, Builder& builder) const {
  if (inputs[0].stream != nullptr) {
    return Built::of(window_stream(builder.as_stream(inputs[0]), options_, title()));
  }
  return {std::make_shared<Window>(inputs[0].indexed, options_)};
}

}  // namespace penstock
