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

// A tower's module. `loss` returns the mean over a batch, from which backward() starts.
struct Replica {
  std::shared_ptr<::torch::nn::Module> module;
  std::function<at::Tensor(Example& batch)> loss;
};

// Makes steps for train::Towers with one libtorch module for each tower, all of them views of the
// same weights. In each tower torch computes with one thread.
//
//   Alias alias(model);
//   train::Updater updater(alias.parameters(), train::Optimizer::sgd(0.1));
//   train::Towers towers(updater, 2);
//   towers.run(feed, tower_steps(model, [](LeNet& net, Example& batch) -> at::Tensor {
//                return cross_entropy(net.forward(to_torch(batch.at("image"))), ...);
//              }));
//
// Tower 0 computes with `model`, which must outlive the run. Each other tower has a module of its
// own, made on its thread when a run begins. It gets the training mode of `model` and of each
// submodule, and the buffers and frozen parameters that `model` had when this was called. Buffers
// that change (BatchNorm's) are each tower's own.
//
// Each tower computes on one core: it calls at::set_num_threads(1), which with OpenMP also holds
// for threads that begin later. Call it again after the run to use more threads.
//
// Random numbers of torch's global generator (dropout) depend on the order of threads: only models
// without them give the same bits in two runs.
//
// Errors, thrown by run(): as Alias; kInvalidArgument: a replica lacks a buffer or parameter.
train::Towers::MakeStep tower_steps(const ::torch::nn::Module& model,
                                    std::function<Replica(size_t tower)> make);

// The same for replicas that are default-constructed. loss: at::Tensor(Model&, Example& batch),
// called on all towers' threads.
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
