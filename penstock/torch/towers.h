#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "penstock/train/towers.h"

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace penstock::torch {

// What one tower computes with. `loss` is the mean over a batch, from which backward() starts.
struct Replica {
  std::shared_ptr<::torch::nn::Module> module;
  std::function<at::Tensor(Example& batch)> loss;
};

// Steps of train::Towers whose towers have a libtorch module each, all of them views of the same
// weights. torch computes with one thread in each.
//
//   Alias alias(model);
//   train::Updater updater(alias.parameters(), train::Optimizer::sgd(0.1));
//   train::Towers towers(updater, 2);
//   towers.run(feed, tower_steps(model, [](LeNet& net, Example& batch) -> at::Tensor {
//                return cross_entropy(net.forward(to_torch(batch.at("image"))), ...);
//              }));
//
// Tower 0 computes with `model` itself, which must outlive the run; each other one with a module of
// its own, made on its thread when a run begins, which takes over whether it and each module in it
// train, and what `model` had, when this was called, of buffers and of parameters that require no
// gradient. Buffers that change (BatchNorm's) are each tower's own from then on.
//
// Towers compute on one core each: they call at::set_num_threads(1), which with OpenMP holds for
// threads that begin later, too. Call it again after the run where these are to use more.
//
// What a model draws from torch's one generator (dropout) depends on which thread is first: only
// without that are two runs the same, bit for bit.
//
// Errors come out of run(): as Alias; kInvalidArgument: a replica has no such buffer or parameter.
train::Towers::MakeStep tower_steps(const ::torch::nn::Module& model,
                                    std::function<Replica(size_t tower)> make);

// The same for replicas that are made by default. loss: at::Tensor(Model&, Example& batch), called
// from all towers' threads.
template <typename Model, typename Loss>
requires std::is_invocable_v<const Loss&, Model&, Example&> train::Towers::MakeStep tower_steps(
    Model& model, Loss loss) {
  return tower_steps(
      static_cast<const ::torch::nn::Module&>(model),
      std::function<Replica(size_t)>([&model, loss](size_t tower) {
        std::shared_ptr<Model> mine(std::shared_ptr<void>(), &model);
        if (tower > 0) mine = std::make_shared<Model>();
        return Replica{mine, [mine, loss](Example& batch) { return loss(*mine, batch); }};
      }));
}

}  // namespace penstock::torch
