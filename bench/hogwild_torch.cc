// Hogwild in C++ on libtorch, for bench/cases/hogwild.py.
//
// hogwild_torch lenet|mlp WAY WORKERS STEPS. WAY: "ours"; "snapshots", the same with snapshots;
// "threads", hand-written threads, each with a module that shares the first module's parameters and
// with torch's SGD; "own", the same with separate weights for each thread. All take the same
// batches, and glibc keeps freed memory. Prints steps a second of all workers together, and the
// loss.
#include <penstock/base/os.h>
#include <penstock/torch/alias.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "examples/torch/digits.h"

namespace {

namespace train = penstock::train;
using Clock = std::chrono::steady_clock;
constexpr double kRate = 0.02;

// Runs a short time first. Returns steps a second.
template <class Run>
double measured(uint64_t steps, Run run) {
  run(steps / 20 + 1);
  const auto began = Clock::now();
  run(steps);
  return static_cast<double>(steps) / std::chrono::duration<double>(Clock::now() - began).count();
}

template <class Model>
double ours(Model& model, Digits& digits, size_t workers, uint64_t steps,
            train::Snapshots snapshots) {
  penstock::torch::Alias alias(model);
  train::Updater updater(alias.parameters(), train::Optimizer::sgd(kRate));
  train::Hogwild hogwild(updater, workers, {.snapshots = snapshots});
  return measured(steps, [&](uint64_t count) {
    hogwild.run(
        [&](train::HogwildWorker& worker) -> train::Hogwild::Step {
          at::set_num_threads(1);
          auto replica = std::make_shared<Model>();
          auto mine = std::make_shared<penstock::torch::Alias>(*replica, worker.weights());
          return [&worker, &digits, replica, mine] {
            const Batch batch = digits.take();
            worker.read();
            loss_of(*replica, batch).backward();
            worker.apply(mine->take_gradients());
            return true;
          };
        },
        {.steps = count});
  });
}

template <class Model>
double by_hand(Model& model, Digits& digits, size_t workers, uint64_t steps, bool own) {
  std::vector<std::unique_ptr<Model>> models;
  for (size_t i = 0; i < workers; ++i) {
    models.push_back(std::make_unique<Model>());
    auto mine = models.back()->parameters();
    const auto shared = model.parameters();
    for (size_t p = 0; p < mine.size(); ++p) {
      mine[p].set_data(own && i > 0 ? shared[p].detach().clone() : shared[p].detach());
    }
  }
  return measured(steps, [&](uint64_t count) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < workers; ++i) {
      threads.emplace_back([&, i] {
        at::set_num_threads(1);
        torch::optim::SGD optimizer(models[i]->parameters(), kRate);
        for (uint64_t step = i; step < count; step += workers) {
          optimizer.zero_grad();
          loss_of(*models[i], digits.take()).backward();
          optimizer.step();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

template <class Model>
void run(const std::string& way, size_t workers, uint64_t steps) {
  torch::manual_seed(1);
  Model model;
  Digits digits(2048, 32);
  const auto snapshots = way == "snapshots" ? train::Snapshots::kUpdate : train::Snapshots::kNone;
  const double rate = way == "snapshots" || way == "ours"
                          ? ours(model, digits, workers, steps, snapshots)
                          : by_hand(model, digits, workers, steps, way == "own");
  const at::NoGradGuard no_grad;
  std::printf("%.6g %.6f\n", rate, loss_of(model, digits.all()).template item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  penstock::os::keep_freed_memory();
  at::set_num_threads(1);
  const size_t workers = std::strtoull(argv[3], nullptr, 10);
  const uint64_t steps = std::strtoull(argv[4], nullptr, 10);
  if (argv[1] == std::string("lenet")) run<LeNet>(argv[2], workers, steps);
  if (argv[1] == std::string("mlp")) run<Mlp>(argv[2], workers, steps);
  return 0;
}
