#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "penstock/train/gradient_parts.h"
#include "penstock/train/parameters.h"

namespace torch::nn {
class Module;
}

namespace penstock::torch {

// A libtorch module whose parameters are views of a slab, and their gradients views of another.
// From then on nothing is copied: backward() adds to the slab of gradients, and what an update
// changes the module has at once. Autograd does not know of these changes: what was saved for a
// backward pass may be newer by then.
//
//   Alias alias(*model);
//   train::Updater updater(alias.parameters(), train::Optimizer::sgd(0.1));
//   for (auto& batch : feed.epoch()) {
//     loss(model, batch).backward();
//     updater.apply(alias.gradients());
//     alias.gradients().zero();
//   }
//
// Blocks have the names of module.named_parameters(). Parameters that do not require a gradient,
// and buffers, stay torch's own.
//
// The module and its Alias may end in any order: views share in the slabs' memory.
//
// Threads: those of the module, one at a time. Several modules on the same parameters are each a
// thread's own; that is Hogwild.
class Alias {
 public:
  // New parameters, which take the module's values. Error kInvalidArgument: a parameter that is not
  // float32 on the CPU, or none; nothing was changed. kOutOfMemory.
  explicit Alias(const ::torch::nn::Module& module,
                 train::Slab::Kind kind = train::Slab::Kind::kPrivate);
  // Another view of parameters that are there: the module loses its own values. Errors as above;
  // kInvalidArgument names the first block that differs.
  Alias(const ::torch::nn::Module& module, train::Parameters parameters,
        train::Slab::Kind kind = train::Slab::Kind::kPrivate);
  // The same, with gradients in a slab that is there: backward() adds to what is in it.
  Alias(const ::torch::nn::Module& module, train::Parameters parameters, train::Slab gradients);
  Alias(Alias&&) noexcept;
  Alias& operator=(Alias&&) noexcept;
  ~Alias();

  const train::Parameters& parameters() const;

  // What backward() has added up since they were zero. Gradients that torch put elsewhere, as after
  // module.zero_grad() with its default, are copied in, which is counted, and the next ones come
  // here again; a parameter without one has zeroes. Error kInvalidArgument: a parameter of the
  // module is no view any more, as after module.to(): make another Alias.
  const train::Slab& gradients();

  // The same without adding up: gradients where torch put them, block by block, of the parameters
  // that have one. From then on these have none, as after module.zero_grad(), so that backward()
  // leaves the next ones where it computed them: nothing is added to what was zero, and nothing
  // zeroed. For an update that takes parts, as HogwildWorker's; blocks that no gradient came to are
  // then left alone. (The first call, and the first after gradients(), still finds all of them:
  // until then the slab is where gradients are.) Good until the next call, or until the Alias ends.
  // Errors as gradients().
  std::span<const train::GradientPart> take_gradients();

  uint64_t copied_bytes() const;  // of gradients that were not where they were to be

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::torch
