// A LeNet-5 and a perceptron, trained with libtorch on one thread and by Hogwild's threads: losses
// and times. No Python.
//
// example_torch_lenet_hogwild [steps]
#include <penstock/base/os.h>
#include <penstock/torch/alias.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "learning.h"
namespace train = penstock::train;
namespace pt = penstock::torch;

// n threads, each with a module of its own over a snapshot of the same weights.
template <class Model>
void hogwild(Model& model, Digits& digits, uint64_t steps, size_t workers) {
  pt::Alias alias(model);
  train::Updater updater(alias.parameters(), train::Optimizer::sgd(kRate));
  train::Hogwild hogwild(updater, workers, {.snapshots = train::Snapshots::kUpdate});
  hogwild.run(
      [&](train::HogwildWorker& worker) -> train::Hogwild::Step {
        at::set_num_threads(1);  // of this thread, and of those that begin later
        auto replica = std::make_shared<Model>();
        auto mine = std::make_shared<pt::Alias>(*replica, worker.weights());
        return [&worker, &digits, replica, mine] {
          const Batch batch = digits.take();
          worker.read();
          loss_of(*replica, batch).backward();
          worker.apply(mine->take_gradients());
          return true;
        };
      },
      {.steps = steps});
}

template <class Model>
void compare(const char* name, uint64_t steps) {
  std::printf("%s, batches of 32\n", name);
  const double base = measured<Model>("torch, one thread", 32, 1, steps, 0, plain<Model>).rate;
  for (size_t n : {1, 2}) {
    measured<Model>(
        "Hogwild, workers: " + std::to_string(n), 32, 1, steps, base,
        [n](Model& model, Digits& digits, uint64_t count) { hogwild(model, digits, count, n); });
  }
}

int main(int argc, char** argv) {
  const uint64_t steps = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1500;
  penstock::os::keep_freed_memory();  // otherwise glibc returns memory that each step needs
  at::set_num_threads(1);
  compare<LeNet>("LeNet-5", steps);
  compare<Mlp>("perceptron", 4 * steps);
}
