// A LeNet-5, trained by towers: n batches at a time, each on a thread of its own, one update from
// the mean of their gradients. The result equals that of torch's loop with batches n times as
// large, except for the rounding of sums (which may change the maximum of a pool, after which the
// weights diverge). Every run gives the same bits. No Python.
//
// example_torch_lenet_towers [updates]
#include <penstock/base/os.h>
#include <penstock/torch/alias.h>
#include <penstock/torch/towers.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "learning.h"
namespace train = penstock::train;
namespace pt = penstock::torch;

void towers(LeNet& model, Digits& digits, uint64_t updates, size_t n) {
  pt::Alias alias(model);
  train::Updater updater(alias.parameters(), train::Optimizer::sgd(kRate));
  const auto loss = [](LeNet& mine, penstock::Example& batch) {
    return loss_of(mine, torch_batch(batch));
  };
  train::Towers(updater, n).run(digits.feed(), pt::tower_steps(model, loss), {.steps = updates});
}

// The largest difference between two weights.
double difference(const Learnt& a, const Learnt& b) {
  double most = 0;
  for (size_t i = 0; i < a.weights.size(); ++i) {
    most = std::max(most, (a.weights[i] - b.weights[i]).abs().max().item<double>());
  }
  return most;
}

int main(int argc, char** argv) {
  constexpr uint64_t kBatch = 32;
  const uint64_t updates = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 750;
  penstock::os::keep_freed_memory();  // otherwise glibc returns memory that each step needs
  at::set_num_threads(1);
  std::printf("LeNet-5, batches of %lu\n", static_cast<unsigned long>(kBatch));
  for (const size_t n : {1, 2}) {
    const Learnt large = measured<LeNet>("torch, one thread, batches x " + std::to_string(n),
                                         n * kBatch, 1, updates, 0, plain<LeNet>);
    const auto learn = [n](LeNet& model, Digits& digits, uint64_t count) {
      towers(model, digits, count, n);
    };
    const double base = large.rate * static_cast<double>(n);
    const auto title = "towers: " + std::to_string(n);
    const Learnt once = measured<LeNet>(title, kBatch, n, updates, base, learn);
    const Learnt again = measured<LeNet>(title + ", again", kBatch, n, updates, base, learn);
    const double between = difference(once, again);
    std::printf("weights differ by at most %.1e from one run to the next\n", between);
    if (between > 0) return 1;
  }
}
