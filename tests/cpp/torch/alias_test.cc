#include "penstock/torch/alias.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cstring>

#include "penstock/base/error.h"
#include "penstock/train/hogwild.h"
#include "penstock/train/tower.h"
#include "tests/cpp/torch/net.h"

namespace penstock::torch {
namespace {

using testing::Net;
using train::Layout;
using train::Optimizer;
using train::Parameters;
using train::Slab;
using train::Updater;

struct Batch {
  explicit Batch(int64_t rows, uint64_t seed = 1) {
    auto random = at::make_generator<at::CPUGeneratorImpl>(seed);
    x = at::randn({rows, 6}, random);
    y = at::randint(0, 3, {rows}, random, at::kLong);
  }
  Batch rows(int64_t begin, int64_t end) const {
    Batch part = *this;
    part.x = x.slice(0, begin, end);
    part.y = y.slice(0, begin, end);
    return part;
  }
  at::Tensor x, y;
};

at::Tensor loss_of(Net& net, const Batch& batch) {
  return ::torch::nn::functional::cross_entropy(net.forward(batch.x), batch.y);
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copied;
  for (const at::Tensor& tensor : tensors) copied.push_back(tensor.detach().clone());
  return copied;
}

TEST(TorchAlias, the_module_and_the_slab_see_what_the_other_writes) {
  Net net;
  const auto before = copies(net.parameters());
  Alias alias(net);
  const auto& blocks = alias.parameters().layout().blocks();
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks[0].name, "first.weight");
  EXPECT_EQ(blocks[0].shape, (Shape{5, 6}));
  EXPECT_EQ(blocks[3].name, "second.bias");
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(net.parameters()[i].equal(before[i]));

  alias.parameters().at("second.bias").as_span<float>()[1] = 42;
  EXPECT_EQ(net.second->bias[1].item<float>(), 42);
  {
    const at::NoGradGuard no_grad;
    net.first->weight[2][3] = -7;
  }
  EXPECT_EQ(alias.parameters().at("first.weight").as_span<float>()[2 * 6 + 3], -7);
}

TEST(TorchAlias, gradients_are_added_up_in_the_slab) {
  Net net, other;
  const Batch batch(8);
  Alias alias(net);
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < 4; ++i) other.parameters()[i].copy_(net.parameters()[i]);
  }
  const Slab& gradients = alias.gradients();
  for (int times = 1; times <= 2; ++times) {
    loss_of(net, batch).backward();
    loss_of(other, batch).backward();
    for (const auto& item : other.named_parameters()) {
      const auto found = gradients.at(item.key()).as_span<float>();
      const at::Tensor wanted = item.value().grad().contiguous();
      ASSERT_EQ(static_cast<int64_t>(found.size()), wanted.numel());
      EXPECT_EQ(std::memcmp(found.data(), wanted.data_ptr(), wanted.nbytes()), 0) << item.key();
    }
  }
  EXPECT_EQ(alias.copied_bytes(), 0u);
}

TEST(TorchAlias, gradients_that_torch_put_elsewhere_are_copied_and_counted) {
  Net net;
  const Batch batch(8);
  Alias alias(net);
  loss_of(net, batch).backward();
  const auto wanted = copies({net.first->weight.grad()});
  net.zero_grad();  // its default: there are no gradients now
  loss_of(net, batch).backward();
  const Slab& gradients = alias.gradients();
  EXPECT_EQ(alias.copied_bytes(), alias.parameters().layout().parameters() * sizeof(float));
  EXPECT_EQ(std::memcmp(gradients.at("first.weight").data(), wanted[0].data_ptr(), 5 * 6 * 4), 0);

  net.zero_grad();
  for (float value : alias.gradients().values()) EXPECT_EQ(value, 0);
  loss_of(net, batch).backward();  // in the slab again
  EXPECT_EQ(net.first->weight.grad().data_ptr(), gradients.at("first.weight").data());
}

TEST(TorchAlias, an_updater_does_what_torch_does) {
  Net net, other;
  Alias alias(net);
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < 4; ++i) other.parameters()[i].copy_(net.parameters()[i]);
  }
  Updater updater(alias.parameters(), Optimizer::sgd(0.1));
  for (uint64_t step = 0; step < 50; ++step) {
    const Batch batch(8, step);
    loss_of(net, batch).backward();
    updater.apply(alias.gradients());
    alias.gradients().zero();
    other.zero_grad();
    loss_of(other, batch).backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : other.parameters()) parameter.sub_(parameter.grad(), 0.1);
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_LT((net.parameters()[i] - other.parameters()[i]).abs().max().item<float>(), 1e-6);
  }
  EXPECT_EQ(alias.parameters().version(), 50u);
}

TEST(TorchAlias, views_and_module_end_in_any_order) {
  const Batch batch(8);
  Net net;
  {
    Alias alias(net);
    alias.parameters().at("second.bias").as_span<float>()[0] = 3;
  }
  EXPECT_EQ(net.second->bias[0].item<float>(), 3);
  loss_of(net, batch).backward();  // into memory that only the module owns
  EXPECT_GT(net.first->weight.grad().abs().sum().item<float>(), 0);

  std::unique_ptr<Alias> lasting;
  {
    Net gone;
    lasting = std::make_unique<Alias>(gone);
    loss_of(gone, batch).backward();
  }
  float sum = 0;
  for (float value : lasting->gradients().values()) sum += std::abs(value);
  EXPECT_GT(sum, 0);
}

TEST(TorchAlias, what_cannot_be_a_view_is_refused_and_nothing_is_changed) {
  const auto text_of = [](const auto& make) -> std::string {
    try {
      make();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      return error.what();
    }
    return "nothing was thrown";
  };
  Net net;
  net.second->to(at::kDouble);
  const void* before = net.first->weight.data_ptr();
  EXPECT_NE(text_of([&] { Alias alias(net); }).find("'second.weight' is Double on cpu"),
            std::string::npos);
  EXPECT_EQ(net.first->weight.data_ptr(), before);

  Net frozen;
  for (at::Tensor& parameter : frozen.parameters()) parameter.set_requires_grad(false);
  EXPECT_NE(text_of([&] { Alias alias(frozen); }).find("no parameter"), std::string::npos);

  Net good;
  Parameters others(Layout{{"first.weight", {5, 6}}, {"first.bias", {4}}});
  EXPECT_NE(text_of([&] { Alias alias(good, others); }).find("'first.bias'"), std::string::npos);

  Alias alias(good);
  good.to(at::kDouble);
  EXPECT_NE(text_of([&] { alias.gradients(); }).find("'first.weight'"), std::string::npos);
}

TEST(TorchAlias, frozen_parameters_stay_torchs_own) {
  Net net;
  net.first->weight.set_requires_grad(false);
  const void* before = net.first->weight.data_ptr();
  Alias alias(net);
  EXPECT_EQ(net.first->weight.data_ptr(), before);
  EXPECT_EQ(alias.parameters().layout().find("first.weight"), nullptr);
  EXPECT_EQ(alias.parameters().layout().blocks().size(), 3u);
}

TEST(TorchAlias, threads_with_a_replica_each_learn_on_the_same_weights) {
  constexpr uint64_t kSteps = 400;
  Net net;
  const Batch all(96);
  const float before = loss_of(net, all).item<float>();
  Alias alias(net);
  Updater updater(alias.parameters(), Optimizer::sgd(0.2));
  train::Hogwild hogwild(updater, 2);
  const auto report = hogwild.run(
      [&](train::HogwildWorker& worker) -> train::Hogwild::Step {
        at::set_num_threads(1);
        auto replica = std::make_shared<Net>();
        auto mine = std::make_shared<Alias>(*replica, worker.parameters());
        EXPECT_EQ(replica->first->weight.data_ptr(), net.first->weight.data_ptr());
        return [&worker, &all, replica, mine, step = uint64_t{0}]() mutable {
          const int64_t begin = static_cast<int64_t>(step++ * 8 % 96);
          worker.read();
          loss_of(*replica, all.rows(begin, begin + 8)).backward();
          worker.apply(mine->gradients());
          return true;
        };
      },
      {.steps = kSteps});
  EXPECT_EQ(report.updates, kSteps);
  EXPECT_EQ(alias.parameters().version(), kSteps);
  EXPECT_LT(loss_of(net, all).item<float>(), 0.9 * before);
}

TEST(TorchAlias, a_worker_by_itself_gives_the_bits_of_an_updater) {
  std::vector<std::vector<at::Tensor>> ends;
  for (const int way : {0, 1, 2}) {
    const bool hogwild = way > 0;
    ::torch::manual_seed(3);
    Net net;
    Alias alias(net);
    Updater updater(alias.parameters(), Optimizer::adam(0.01, {}, {}));
    uint64_t seed = 0;
    if (hogwild) {
      train::Hogwild run(updater, 1);
      run.run(
          [&](train::HogwildWorker& worker) -> train::Hogwild::Step {
            at::set_num_threads(1);
            return [&] {
              loss_of(net, Batch(8, seed++)).backward();
              if (way == 1) worker.apply(alias.gradients());
              if (way == 2) worker.apply(alias.take_gradients());
              return true;
            };
          },
          {.steps = 30});
    } else {
      for (int step = 0; step < 30; ++step) {
        loss_of(net, Batch(8, seed++)).backward();
        updater.apply(alias.gradients());
        alias.gradients().zero();
      }
    }
    ends.push_back(copies(net.parameters()));
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(ends[0][i].equal(ends[1][i]));
    EXPECT_TRUE(ends[0][i].equal(ends[2][i]));
  }
}

TEST(TorchAlias, gradients_are_taken_from_where_torch_computed_them) {
  Net net, other;
  const Batch batch(8, 1);
  Alias alias(net), slab(other);
  {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < 4; ++i) other.parameters()[i].copy_(net.parameters()[i]);
  }
  loss_of(other, batch).backward();
  const auto wanted = slab.gradients();
  for (int round = 0; round < 3; ++round) {
    loss_of(net, batch).backward();
    const auto parts = alias.take_gradients();
    ASSERT_EQ(parts.size(), 4u);
    for (const train::GradientPart& part : parts) {
      const auto block = wanted.values_of(wanted.layout().at(part.block));
      EXPECT_TRUE(std::ranges::equal(part.values, block)) << part.block << " " << round;
      EXPECT_FALSE(part.of_rows);
    }
    for (const at::Tensor& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(alias.copied_bytes(), 0u);
  EXPECT_TRUE(alias.take_gradients().empty());
  // Only the parameters that a backward pass reached; and the slab, if it is requested again.
  net.first->weight.sum().backward();
  ASSERT_EQ(alias.take_gradients().size(), 1u);
  EXPECT_EQ(alias.take_gradients().size(), 0u);
  for (float value : alias.gradients().values()) EXPECT_EQ(value, 0);
  loss_of(net, batch).backward();
  EXPECT_TRUE(std::ranges::equal(alias.gradients().values(), wanted.values()));
}

TEST(TorchAlias, towers_give_the_gradient_of_one_large_batch) {
  Net net;
  Alias alias(net);
  const Batch large(24);
  loss_of(net, large).backward();
  const Slab wanted = alias.parameters().gradients();
  wanted.copy_from(alias.gradients());

  // Of unlike sizes: each batch counts for as many rows as it has.
  const std::vector<int64_t> cuts = {0, 12, 18, 24};
  std::vector<Net> replicas(3);
  std::vector<Slab> gradients;
  std::vector<float> weights;
  for (size_t tower = 0; tower < 3; ++tower) {
    Alias mine(replicas[tower], alias.parameters());
    const int64_t rows = cuts[tower + 1] - cuts[tower];
    loss_of(replicas[tower], large.rows(cuts[tower], cuts[tower + 1])).backward();
    gradients.push_back(mine.gradients());
    weights.push_back(static_cast<float>(rows) / 24);
  }
  train::add_towers(gradients, weights, 0, wanted.layout().floats());
  for (size_t i = 0; i < wanted.values().size(); ++i) {
    EXPECT_NEAR(gradients[0].values()[i], wanted.values()[i], 1e-6);
  }
}

}  // namespace
}  // namespace penstock::torch
