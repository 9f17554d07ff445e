#include "penstock/torch/alias.h"

#include <torch/nn/module.h>

#include <optional>
#include <utility>
#include <vector>

#include "penstock/base/error.h"

namespace penstock::torch {
namespace {

using train::Block;
using train::BlockSpec;
using train::Layout;
using train::Parameters;
using train::Slab;

constexpr const char* kOperation = "torch::Alias";

struct Named {
  std::string name;
  at::Tensor parameter;
};

std::vector<Named> trained_parameters(const ::torch::nn::Module& module) {
  std::vector<Named> found;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad()) continue;
    if (parameter.scalar_type() != at::kFloat || !parameter.device().is_cpu()) {
      throw Error(Code::kInvalidArgument, kOperation,
                  "parameter '" + item.key() + "' is " + c10::toString(parameter.scalar_type()) +
                      " on " + parameter.device().str() +
                      "; only float32 on the CPU can be a view: module.to(torch::kCPU, "
                      "torch::kFloat32) before");
    }
    found.push_back({item.key(), parameter});
  }
  if (found.empty()) {
    throw Error(Code::kInvalidArgument, kOperation,
                "the module has no parameter that requires a gradient");
  }
  return found;
}

Layout layout_of(const std::vector<Named>& found) {
  std::vector<BlockSpec> specs;
  for (const Named& named : found) specs.push_back({named.name, named.parameter.sizes().vec()});
  return Layout(specs);
}

// A tensor over a block; it keeps the slab's memory and has a version counter of its own.
at::Tensor view_of(const Slab& slab, const Block& block) {
  return at::from_blob(
      slab.values_of(block).data(), block.shape, [slab](void*) {}, at::kFloat);
}

}  // namespace

struct Alias::State {
  struct View {
    std::string name;
    at::Tensor parameter;  // the module's
    const void* weights;   // where its values must be
    at::Tensor gradient;   // over its block
  };

  State(const std::vector<Named>& found, Slab::Kind kind)
      : State(found, Parameters(layout_of(found), kind), std::nullopt, kind, true) {}

  // `own`: the parameters take this module's values.
  State(const std::vector<Named>& found, Parameters of, std::optional<Slab> given, Slab::Kind kind,
        bool own)
      : parameters(std::move(of)), gradients(given ? *given : parameters.gradients(kind)) {
    parameters.layout().require_equal(layout_of(found), kOperation, "the module");
    parameters.layout().require_equal(gradients.layout(), kOperation, "the gradients");
    at::NoGradGuard no_grad;
    for (const Named& named : found) {
      const Block& block = parameters.layout().at(named.name);
      const at::Tensor weights = view_of(parameters.slab(), block);
      if (own) weights.copy_(named.parameter);
      views.push_back({named.name, named.parameter, weights.data_ptr(), view_of(gradients, block)});
      // Not detach(), whose result shares a version counter: two modules on the same weights would
      // make each other's backward passes fail.
      named.parameter.set_data(weights);
    }
    settle();
  }

  void check_views() const {
    for (const View& view : views) {
      if (view.parameter.data_ptr() != view.weights) {
        throw Error(Code::kInvalidArgument, kOperation,
                    "parameter '" + view.name +
                        "' of the module is no longer a view of these weights (module.to?): make "
                        "another Alias");
      }
    }
  }

  // Copies gradients that torch stored elsewhere into the slab, and makes the slab the place of the
  // next ones.
  void settle() {
    check_views();
    at::NoGradGuard no_grad;
    for (const View& view : views) {
      at::Tensor& gradient = view.parameter.mutable_grad();
      if (gradient.defined() && !gradient.is_sparse() &&
          gradient.data_ptr() == view.gradient.data_ptr()) {
        continue;
      }
      if (!gradient.defined()) {
        view.gradient.zero_();
      } else {
        view.gradient.copy_(gradient.is_sparse() ? gradient.to_dense() : gradient);
        copied_bytes += view.gradient.nbytes();
      }
      gradient = view.gradient;
    }
  }

  std::span<const train::GradientPart> take() {
    check_views();
    at::NoGradGuard no_grad;
    parts.clear();
    taken.clear();
    for (const View& view : views) {
      at::Tensor& place = view.parameter.mutable_grad();
      if (!place.defined()) continue;
      at::Tensor gradient = std::exchange(place, at::Tensor());
      const void* first = gradient.is_sparse() ? nullptr : gradient.data_ptr();
      if (gradient.is_sparse()) gradient = gradient.to_dense();
      gradient = gradient.contiguous();
      if (gradient.data_ptr() != first) copied_bytes += gradient.nbytes();
      const auto size = static_cast<size_t>(gradient.numel());
      parts.push_back({view.name, {gradient.const_data_ptr<float>(), size}});
      taken.push_back(std::move(gradient));
    }
    return parts;
  }

  const Parameters parameters;
  const Slab gradients;
  std::vector<View> views;
  std::vector<train::GradientPart> parts;
  std::vector<at::Tensor> taken;  // owners of the memory of `parts`
  uint64_t copied_bytes = 0;
};

Alias::Alias(const ::torch::nn::Module& module, Slab::Kind kind)
    : state_(std::make_unique<State>(trained_parameters(module), kind)) {}
Alias::Alias(const ::torch::nn::Module& module, Parameters parameters, Slab::Kind kind)
    : state_(std::make_unique<State>(trained_parameters(module), std::move(parameters),
                                     std::nullopt, kind, false)) {}
Alias::Alias(const ::torch::nn::Module& module, Parameters parameters, Slab gradients)
    : state_(std::make_unique<State>(trained_parameters(module), std::move(parameters),
                                     std::move(gradients), Slab::Kind::kPrivate, false)) {}
Alias::Alias(Alias&&) noexcept = default;
Alias& Alias::operator=(Alias&&) noexcept = default;
Alias::~Alias() = default;

const Parameters& Alias::parameters() const { return state_->parameters; }
const Slab& Alias::gradients() {
  state_->settle();
  return state_->gradients;
}
std::span<const train::GradientPart> Alias::take_gradients() { return state_->take(); }
uint64_t Alias::copied_bytes() const { return state_->copied_bytes; }

}  // namespace penstock::torch
