// Eight LeNet-5 in one process, each with its own learning rate: their weights and optimizer states
// are rows of one slab, and two threads train them. Prints each as it completes, and compares one
// of them with torch's own Adam. No Python.
//
// example_torch_lenet_population [steps]
#include <penstock/base/os.h>
#include <torch/optim/adam.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "member.h"
namespace train = penstock::train;

constexpr size_t kMembers = 8, kThreads = 2;

double loss_on(LeNet& model, const Batch& batch) {
  const at::NoGradGuard no_grad;
  return loss_of(model, batch).item<double>();
}

int main(int argc, char** argv) {
  const uint64_t steps = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300;
  penstock::os::keep_freed_memory();  // otherwise glibc returns memory that each step needs
  at::set_num_threads(1);
  const train::Layout layout = penstock::torch::Alias(LeNet()).parameters().layout();
  const train::Slab rows = train::Slab::make(
      {{"members", {kMembers, static_cast<int64_t>(Member::kParts * layout.floats())}}});
  std::vector<std::unique_ptr<Member>> members;
  for (size_t n = 0; n < kMembers; ++n)
    members.push_back(std::make_unique<Member>(rows, layout, n));

  const Batch all = Digits(1024, kBatch).all();
  std::vector<double> losses(kMembers);
  std::atomic<size_t> next = 0;
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        at::set_num_threads(1);
        for (size_t n; (n = next++) < kMembers;) {
          try {
            members[n]->learn(steps);
            losses[n] = loss_on(*members[n]->model, all);
            std::printf("network %zu: learning rate %.5f, loss %.4f\n", n, rate_of(n), losses[n]);
          } catch (const std::exception& error) {  // this network alone has failed
            losses[n] = std::nan("");
            std::printf("network %zu: %s\n", n, error.what());
          }
        }
      });
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("%zu networks, %.0f samples/s\n", kMembers,
              static_cast<double>(kMembers * steps * kBatch) / seconds.count());

  // The second network again, alone and by torch.
  auto alone = seeded(1);
  torch::optim::Adam optimizer(alone->parameters(), torch::optim::AdamOptions(rate_of(1)));
  Digits digits(1024, kBatch);
  for (uint64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(*alone, digits.take()).backward();
    optimizer.step();
  }
  const double loss = loss_on(*alone, all);
  std::printf("network 1 by torch alone: loss %.4f\n", loss);
  return std::abs(loss - losses[1]) < 0.02 * loss + 1e-3 && losses[1] < 2 ? 0 : 1;
}
