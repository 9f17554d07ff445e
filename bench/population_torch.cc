// Thirty LeNet-5 in C++ on libtorch, for bench/cases/population.py.
//
// population_torch ours|threads BATCH STEPS. "ours": weights are rows of one slab, and the engine's
// optimizer steps; "threads": modules and optimizers of torch's own. Two threads train half of the
// networks each, all of them on the same batches, by SGD with a learning rate of their own. Prints
// samples times networks a second, and the most memory of the process in bytes. Exits with 1 if a
// network differs from the same one trained alone by torch.
#include <penstock/base/os.h>
#include <penstock/torch/alias.h>
#include <sys/resource.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cmath>
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

constexpr size_t kMembers = 30, kThreads = 2, kWarm = 3;
constexpr size_t kMember = kMembers - 1;  // the one that is compared

double rate_of(size_t member) {
  return 0.005 * std::pow(20.0, static_cast<double>(member) / (kMembers - 1));
}

std::shared_ptr<LeNet> seeded(size_t member) {
  torch::manual_seed(member);
  return std::make_shared<LeNet>();
}

class Member {
 public:
  virtual ~Member() = default;
  virtual double learn(const Batch& batch) = 0;  // returns the loss before
};

class InSlab : public Member {
 public:
  InSlab(const train::Slab& rows, const train::Layout& layout, size_t number)
      : model_(seeded(number)),
        alias_(*model_, weights_in(rows.window(layout, number * layout.floats()), *model_)),
        updater_(alias_.parameters(), train::Optimizer::sgd(rate_of(number))) {}

  double learn(const Batch& batch) override {
    const at::Tensor loss = loss_of(*model_, batch);
    loss.backward();
    updater_.apply(alias_.gradients());
    alias_.gradients().zero();
    return loss.item<double>();
  }

 private:
  static train::Parameters weights_in(const train::Slab& weights, LeNet& model) {
    weights.copy_from(penstock::torch::Alias(model).parameters().slab());
    return train::Parameters(weights);
  }

  std::shared_ptr<LeNet> model_;
  penstock::torch::Alias alias_;
  train::Updater updater_;
};

class ByTorch : public Member {
 public:
  explicit ByTorch(size_t number)
      : model_(seeded(number)), optimizer_(model_->parameters(), rate_of(number)) {}

  double learn(const Batch& batch) override {
    optimizer_.zero_grad();
    const at::Tensor loss = loss_of(*model_, batch);
    loss.backward();
    optimizer_.step();
    return loss.item<double>();
  }

 private:
  std::shared_ptr<LeNet> model_;
  torch::optim::SGD optimizer_;
};

std::vector<std::unique_ptr<Member>> members_of(const std::string& way) {
  std::vector<std::unique_ptr<Member>> members;
  if (way == "ours") {
    const train::Layout layout = penstock::torch::Alias(LeNet()).parameters().layout();
    const train::Slab rows =
        train::Slab::make({{"members", {kMembers, static_cast<int64_t>(layout.floats())}}});
    for (size_t n = 0; n < kMembers; ++n) {
      members.push_back(std::make_unique<InSlab>(rows, layout, n));
    }
  } else {
    for (size_t n = 0; n < kMembers; ++n) members.push_back(std::make_unique<ByTorch>(n));
  }
  return members;
}

// Trains all members on batches [first, end). Returns the last loss of one of them.
double run(std::vector<std::unique_ptr<Member>>& members, const std::vector<Batch>& batches,
           size_t first, size_t end) {
  double compared = 0;
  std::vector<std::jthread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      at::set_num_threads(1);
      for (size_t step = first; step < end; ++step) {
        for (size_t n = t; n < kMembers; n += kThreads) {
          const double loss = members[n]->learn(batches[step]);
          if (n == kMember) compared = loss;
        }
      }
    });
  }
  threads.clear();
  return compared;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const uint64_t batch = std::strtoull(argv[2], nullptr, 10);
  const size_t steps = std::strtoull(argv[3], nullptr, 10);
  penstock::os::keep_freed_memory();
  at::set_num_threads(1);
  Digits digits(static_cast<int64_t>(batch) * 4, batch);
  std::vector<Batch> batches;
  while (batches.size() < kWarm + steps) batches.push_back(digits.take());

  auto members = members_of(argv[1]);
  run(members, batches, 0, kWarm);
  const auto began = Clock::now();
  const double loss = run(members, batches, kWarm, batches.size());
  const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  std::printf("%.6g %.6g\n", static_cast<double>(kMembers * batch * steps) / seconds,
              static_cast<double>(used.ru_maxrss) * 1024);

  ByTorch alone(kMember);
  double wanted = 0;
  for (const Batch& each : batches) wanted = alone.learn(each);
  return std::abs(loss - wanted) <= 1e-3 * wanted + 1e-6 ? 0 : 1;
}
