#include "penstock/torch/towers.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/api/dataset.h"
#include "penstock/torch/alias.h"
#include "penstock/torch/tensor.h"
#include "tests/cpp/torch/net.h"

namespace penstock::torch {
namespace {

using testing::Net;
using train::Optimizer;
using train::Towers;
using train::Updater;

constexpr int64_t kRows = 60;

// A module with a buffer that counts, and a parameter that is not trained.
struct Normal : ::torch::nn::Module {
  ::torch::nn::BatchNorm1d norm{6};
  ::torch::nn::Linear linear{6, 3};

  Normal() {
    register_module("norm", norm);
    register_module("linear", linear);
  }
  at::Tensor forward(const at::Tensor& x) { return linear(norm(x)); }
};

Dataset samples() {
  auto random = at::make_generator<at::CPUGeneratorImpl>(1);
  return Dataset::arrays({{"x", from_torch(at::randn({kRows, 6}, random))},
                          {"y", from_torch(at::randint(0, 3, {kRows}, random, at::kLong))}});
}

template <typename Model>
at::Tensor loss_of(Model& model, const Example& batch) {
  return ::torch::nn::functional::cross_entropy(model.forward(to_torch(batch.at("x"))),
                                                to_torch(batch.at("y")));
}

// The parameters after training by `towers` in batches of `rows`.
std::vector<at::Tensor> learnt(size_t towers, uint64_t rows) {
  ::torch::manual_seed(3);
  Net net;
  Alias alias(net);
  Updater updater(alias.parameters(), Optimizer::adam(0.01, {}, {}));
  Loader feed = samples().batch(rows).build({.workers = 1});
  const auto report =
      Towers(updater, towers).run(feed, tower_steps(net, loss_of<Net>), {.epochs = 3});
  const uint64_t batches = (kRows + rows - 1) / rows;
  EXPECT_EQ(report.rounds, 3 * ((batches + towers - 1) / towers));
  EXPECT_EQ(report.copied_bytes, 0u);
  std::vector<at::Tensor> ends;
  for (const at::Tensor& parameter : net.parameters()) ends.push_back(parameter.detach().clone());
  return ends;
}

TEST(TorchTowers, a_round_is_one_large_batch_and_the_same_bits_again) {
  for (const size_t count : {1, 2, 3, 5}) {
    const auto once = learnt(count, 4), again = learnt(count, 4), large = learnt(1, 4 * count);
    for (size_t i = 0; i < once.size(); ++i) {
      EXPECT_TRUE(once[i].equal(again[i])) << count << " towers";
      EXPECT_LT((once[i] - large[i]).abs().max().item<float>(), 1e-4) << count << " towers";
    }
  }
}

TEST(TorchTowers, one_that_throws_ends_all_and_the_model_can_be_used) {
  Net net;
  Alias alias(net);
  Updater updater(alias.parameters(), Optimizer::sgd(0.1));
  Towers towers(updater, 2);
  Loader feed = samples().batch(6).build({.workers = 1});
  const auto fails = [&net](Net& mine, Example& batch) -> at::Tensor {
    if (&mine != &net) throw std::runtime_error("a replica's");
    return loss_of(mine, batch);
  };
  EXPECT_THROW(towers.run(feed, tower_steps(net, fails)), std::runtime_error);
  EXPECT_EQ(towers.failed()->tower, 1u);
  EXPECT_EQ(towers.failed()->round, 0u);
  EXPECT_EQ(updater.step(), 0u);
  const auto first = towers.run(feed, tower_steps(net, loss_of<Net>));
  const auto second = towers.run(feed, tower_steps(net, loss_of<Net>), {.epochs = 30});
  EXPECT_LT(second.last_loss, first.loss);
  alias.gradients().zero();
  loss_of(net, *feed.next()).backward();
  EXPECT_EQ(net.first->bias.grad().data_ptr(), alias.gradients().at("first.bias").data());
}

TEST(TorchTowers, what_is_not_trained_is_the_models_at_first) {
  Normal model;
  model.linear->weight.set_requires_grad(false);
  {
    const at::NoGradGuard no_grad;
    model.norm->running_mean.fill_(2);
  }
  model.eval();
  Alias alias(model);
  Updater updater(alias.parameters(), Optimizer::sgd(0.1));
  Loader feed = samples().batch(6).build({.workers = 0});
  std::atomic<int> seen{0};
  const auto looks = [&](Normal& mine, Example& batch) {
    EXPECT_FALSE(mine.is_training());
    EXPECT_FALSE(mine.linear->weight.requires_grad());
    EXPECT_TRUE(mine.linear->weight.equal(model.linear->weight));
    EXPECT_TRUE(mine.norm->running_mean.equal(at::full({6}, 2.0)));
    if (&mine != &model) ++seen;
    return loss_of(mine, batch);
  };
  EXPECT_EQ(Towers(updater, 2).run(feed, tower_steps(model, looks)).updates, 5u);
  EXPECT_EQ(seen, 5);

  model.train();
  model.norm->eval();  // as in fine-tuning
  const auto looks_again = [&](Normal& mine, Example& batch) {
    EXPECT_TRUE(mine.is_training());
    EXPECT_FALSE(mine.norm->is_training());
    return loss_of(mine, batch);
  };
  Towers(updater, 2).run(feed, tower_steps(model, looks_again));

  model.train();
  Towers(updater, 2).run(feed, tower_steps(model, loss_of<Normal>));
  EXPECT_EQ(model.norm->num_batches_tracked.item<int64_t>(), 5) << "of tower 0's batches";

  Towers other(updater, 2);
  const auto wrong = [&model](size_t tower) {
    std::shared_ptr<::torch::nn::Module> mine(std::shared_ptr<void>(), &model);
    if (tower > 0) mine = std::make_shared<Net>();
    return Replica{mine, {}};
  };
  EXPECT_THROW(other.run(feed, tower_steps(model, wrong)), Error);
  EXPECT_EQ(other.failed()->tower, 1u);
}

TEST(TorchTowers, gradients_that_torch_put_elsewhere_are_copied_and_counted) {
  Net net;
  Alias alias(net);
  Updater updater(alias.parameters(), Optimizer::sgd(0.1));
  Loader feed = samples().batch(6).build({.workers = 0});
  const auto forgets = [](Net& mine, Example& batch) {
    mine.zero_grad();  // its default removes the gradients
    return loss_of(mine, batch);
  };
  const auto report = Towers(updater, 2).run(feed, tower_steps(net, forgets));
  EXPECT_EQ(report.copied_bytes, 10 * sizeof(float) * alias.parameters().layout().parameters());
  EXPECT_LT(report.last_loss, 2);
}

}  // namespace
}  // namespace penstock::torch
