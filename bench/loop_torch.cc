// Steps of a tiny model in C++ on libtorch, for bench/cases/loop.py.
//
// loop_torch WAY STEPS BATCH N. WAY: "ours", train::Loop over an array, in super-batches of N
// steps; "hand", a hand-written loop over the same array. glibc keeps freed memory. Prints seconds
// a step, the best of three passes, and the last loss.
#include <penstock/base/os.h>
#include <penstock/pipeline/api/dataset.h>
#include <penstock/torch/tensor.h>
#include <penstock/train/loop.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

namespace {

namespace pt = penstock::torch;
using penstock::Example;
using Clock = std::chrono::steady_clock;

struct Tiny : torch::nn::Module {
  torch::nn::Linear hidden{8, 16}, out{16, 1};
  Tiny() { register_module("hidden", hidden), register_module("out", out); }
  at::Tensor forward(const at::Tensor& x) { return out(at::relu(hidden(x))); }
};

class Learner {
 public:
  at::Tensor learn(const at::Tensor& x, const at::Tensor& y) {
    optimizer_.zero_grad();
    at::Tensor loss = torch::nn::functional::mse_loss(model_.forward(x), y);
    loss.backward();
    optimizer_.step();
    return loss.detach();
  }

 private:
  Tiny model_;
  torch::optim::SGD optimizer_{model_.parameters(), 1e-2};
};

// Seconds of the fastest of three passes, after one to warm up.
template <class Pass>
double best_of(Pass pass) {
  double best = 1e9;
  for (int i = 0; i < 4; ++i) {
    const auto began = Clock::now();
    pass();
    const std::chrono::duration<double> took = Clock::now() - began;
    if (i > 0) best = std::min(best, took.count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  penstock::os::keep_freed_memory();
  at::set_num_threads(1);
  torch::manual_seed(1);
  const std::string way = argv[1];
  const auto steps = static_cast<int64_t>(std::strtoll(argv[2], nullptr, 10));
  const auto batch = static_cast<int64_t>(std::strtoll(argv[3], nullptr, 10));
  const uint64_t n = std::strtoull(argv[4], nullptr, 10);
  const at::Tensor x = at::randn({steps * batch, 8}), y = x.sum(1, true);
  Learner learner;
  double loss = 0, seconds = 0;
  if (way == "ours") {
    const auto samples =
        penstock::Dataset::arrays({{"x", pt::from_torch(x)}, {"y", pt::from_torch(y)}});
    penstock::train::Loop loop(samples, {.batch_size = static_cast<uint64_t>(batch), .steps = n});
    const auto step = [&](const Example& part) {
      return learner.learn(pt::to_torch(part.at("x")), pt::to_torch(part.at("y")));
    };
    seconds = best_of([&] {
      loop.run(step, [&](uint64_t, std::span<const at::Tensor> losses) {
        for (const at::Tensor& each : losses) loss = each.item<double>();
        return true;
      });
    });
  } else {
    seconds = best_of([&] {
      std::vector<at::Tensor> losses;
      for (int64_t step = 0; step < steps; ++step) {
        const int64_t begin = step * batch;
        losses.push_back(
            learner.learn(x.slice(0, begin, begin + batch), y.slice(0, begin, begin + batch)));
        if (losses.size() == n) {
          for (const at::Tensor& each : losses) loss = each.item<double>();
          losses.clear();
        }
      }
    });
  }
  std::printf("%.9g %.6f\n", seconds / static_cast<double>(steps), loss);
  return 0;
}
