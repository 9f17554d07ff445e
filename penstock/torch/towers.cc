#include "penstock/torch/towers.h"

#include <ATen/Parallel.h>
#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/torch/alias.h"

namespace penstock::torch {
namespace {

// A copy of a module's state outside the slab: training modes, frozen parameters, buffers.
struct Rest {
  explicit Rest(const ::torch::nn::Module& module) : training(module.is_training()) {
    for (const auto& item : module.named_modules({}, false)) {
      trains.emplace_back(item.key(), item.value()->is_training());
    }
    for (const auto& item : module.named_parameters()) {
      if (!item.value().requires_grad()) frozen.insert(item.key(), item.value().detach().clone());
    }
    for (const auto& item : module.named_buffers()) {
      buffers.insert(item.key(), item.value().detach().clone());
    }
  }

  void copy_into(::torch::nn::Module& module) const {
    const at::NoGradGuard no_grad;
    auto parameters = module.named_parameters(), others = module.named_buffers();
    for (const auto& item : frozen) {
      at::Tensor& parameter = found(parameters, item.key());
      parameter.set_requires_grad(false);
      parameter.copy_(item.value());
    }
    for (const auto& item : buffers) found(others, item.key()).copy_(item.value());
    module.train(training);
    auto modules = module.named_modules({}, false);
    for (const auto& [name, does] : trains) {  // parents first: train() also sets the children
      if (auto* found = modules.find(name)) (*found)->train(does);
    }
  }

 private:
  using Tensors = ::torch::OrderedDict<std::string, at::Tensor>;

  static at::Tensor& found(Tensors& tensors, const std::string& name) {
    at::Tensor* tensor = tensors.find(name);
    if (tensor == nullptr) {
      throw Error(Code::kInvalidArgument, "torch::tower_steps",
                  "a replica has no '" + name + "', which the model has");
    }
    return *tensor;
  }

  bool training;
  std::vector<std::pair<std::string, bool>> trains;  // of the submodules
  Tensors frozen, buffers;
};

}  // namespace

train::Towers::MakeStep tower_steps(const ::torch::nn::Module& model,
                                    std::function<Replica(size_t tower)> make) {
  return [rest = std::make_shared<const Rest>(model),
          make = std::move(make)](train::Tower& tower) -> train::Towers::Step {
    // Otherwise each tower would use all cores. With OpenMP it also holds for threads that begin
    // later (see tower_steps).
    at::set_num_threads(1);
    Replica replica = make(tower.number());
    if (tower.number() > 0) rest->copy_into(*replica.module);
    const auto alias =
        std::make_shared<Alias>(*replica.module, tower.parameters(), tower.gradients());
    tower.gradients().zero();  // gradients from before the run
    return [&tower, alias, replica = std::move(replica)](Example& batch) -> std::optional<double> {
      const uint64_t copied = alias->copied_bytes();
      const at::Tensor loss = replica.loss(batch);
      loss.backward();
      alias->gradients();  // copies in gradients that torch stored elsewhere
      tower.note_copied(alias->copied_bytes() - copied);
      return loss.item<double>();
    };
  };
}

}  // namespace penstock::torch
