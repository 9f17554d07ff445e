#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "penstock/train/gradient_parts.h"
#include "penstock/train/slab.h"

namespace torch::nn {
class Module;
}

namespace penstock::torch {

// Makes the parameters of a libtorch module views of a slab, and their gradients views of another.
// Afterwards nothing is copied: backward() adds to the slab of gradients, and the module sees every
// update immediately. Autograd does not notice updates: values saved for a backward pass may have
// changed by then.
//
//   Alias alias(*model);
//   train::Updater updater(alias.parameters(), train::Optimizer::sgd(0.1));
//   for (auto& batch : feed.epoch()) {
//     loss(model, batch).backward();
//     updater.apply(alias.gradients());
//     alias.gradients().zero();
//   }
//
// Blocks have the names of module.named_parameters(). Parameters that require no gradient, and
// buffers, are not changed.
//
// The module and its Alias may be destroyed in any order: views keep the slabs' memory.
//
// Threads: those of the module, one at a time. Several modules on the same parameters may each have
// a thread (Hogwild).
class Alias {
 public:
  // Makes new parameters with the module's values. Error kInvalidArgument: a parameter that is not
  // float32 on the CPU, or no parameter; nothing was changed. kOutOfMemory.
  explicit Alias(const ::torch::nn::Module& module,
                 train::Slab::Kind kind = train::Slab::Kind::kPrivate);
  // Makes the module a view of existing parameters; the module's values are lost. Errors as above;
  // kInvalidArgument also names the first block that differs.
  Alias(const ::torch::nn::Module& module, train::Parameters parameters,
        train::Slab::Kind kind = train::Slab::Kind::kPrivate);
  // The same with an existing slab of gradients: backward() adds to its values.
  Alias(const ::torch::nn::Module& module, train::Parameters parameters, train::Slab gradients);
  Alias(Alias&&) noexcept;
  Alias& operator=(Alias&&) noexcept;
  ~Alias();

  const train::Parameters& parameters() const;

  // The gradients that backward() added up since they were set to zero. Gradients that torch stored
  // elsewhere, as after module.zero_grad() with its default, are copied in and counted, and later
  // ones are stored here again; a parameter without a gradient has zeroes. Error kInvalidArgument:
  // a parameter of the module is not a view any more, as after module.to(): make another Alias.
  const train::Slab& gradients();

  // The gradients where torch stored them, block by block, of the parameters that have one.
  // Afterwards the parameters have no gradient, as after module.zero_grad(), so backward() leaves
  // the next ones where it computes them: no addition and no zeroing. For updates that take parts,
  // such as HogwildWorker's, which leave blocks without a gradient untouched. (The first call, and
  // the first one after gradients(), still finds all blocks in the slab.) Valid until the next
  // call, or until the Alias is destroyed. Errors as gradients().
  std::span<const train::GradientPart> take_gradients();

  uint64_t copied_bytes() const;  // bytes of gradients that torch had stored elsewhere

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::torch
