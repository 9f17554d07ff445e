#pragma once

#include <penstock/penstock.h>
#include <penstock/torch/tensor.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

// The network of the examples, and its data.

namespace F = torch::nn::functional;

struct LeNet : torch::nn::Module {
  torch::nn::Conv2d c1{torch::nn::Conv2dOptions(1, 6, 5).padding(2)};
  torch::nn::Conv2d c2{torch::nn::Conv2dOptions(6, 16, 5)};
  torch::nn::Linear f1{400, 120}, f2{120, 84}, f3{84, 10};

  LeNet() {
    register_module("c1", c1), register_module("c2", c2);
    register_module("f1", f1), register_module("f2", f2), register_module("f3", f3);
  }
  at::Tensor forward(at::Tensor x) {
    x = at::max_pool2d(at::relu(c1(x)), 2);
    x = at::max_pool2d(at::relu(c2(x)), 2).flatten(1);
    return f3(at::relu(f2(at::relu(f1(x)))));
  }
};

struct Mlp : torch::nn::Module {
  torch::nn::Linear f1{784, 128}, f2{128, 64}, f3{64, 10};

  Mlp() { register_module("f1", f1), register_module("f2", f2), register_module("f3", f3); }
  at::Tensor forward(const at::Tensor& x) { return f3(at::relu(f2(at::relu(f1(x.flatten(1)))))); }
};

struct Batch {
  at::Tensor images, labels;  // views of a slot, which they lease
};

template <class Model>
at::Tensor loss_of(Model& model, const Batch& batch) {
  return F::cross_entropy(model.forward(batch.images), batch.labels);
}

inline Batch torch_batch(const penstock::Example& batch) {
  return {penstock::torch::to_torch(batch.at("image")),
          penstock::torch::to_torch(batch.at("label"))};
}

// Images of 28x28 in ten classes: each class has a pattern of blots, and an image has the pattern
// slightly moved and with noise. In endless shuffled batches; any thread may take them.
class Digits {
 public:
  Digits(int64_t images, uint64_t batch)
      : all_(make(images)),
        feed_(penstock::Dataset::arrays(all_)
                  .shuffle({.seed = 7})
                  .batch(batch)
                  .repeat()
                  .build({.workers = 0})) {}

  Batch take() {
    const std::lock_guard lock(mutex_);
    return torch_batch(*feed_.next());
  }
  penstock::Loader& feed() { return feed_; }  // for one thread
  Batch all() const { return torch_batch(all_); }

 private:
  static penstock::Example make(int64_t n) {
    constexpr int kSide = 28, kBlots = 5;
    auto images = penstock::Tensor::make(penstock::DType::kFloat32, {n, 1, kSide, kSide});
    auto labels = penstock::Tensor::make(penstock::DType::kInt64, {n});
    penstock::RandomStream rng({.seed = 1});
    std::vector<double> blots(10 * kBlots * 2);
    for (double& place : blots) place = 5 + 18 * rng.uniform();
    float* pixel = images.as_span<float>().data();
    for (int64_t& label : labels.as_span<int64_t>()) {
      label = static_cast<int64_t>(rng.below(10));
      const double* mine = &blots[static_cast<size_t>(label) * kBlots * 2];
      const double down = 6 * rng.uniform() - 3, right = 6 * rng.uniform() - 3;
      for (int p = 0; p < kSide * kSide; ++p) {
        double light = 1.2 * (rng.uniform() - 0.5);
        for (int b = 0; b < kBlots; ++b) {
          const double y = p / kSide - mine[2 * b] - down, x = p % kSide - mine[2 * b + 1] - right;
          light += std::exp(-(x * x + y * y) / 6);
        }
        *pixel++ = static_cast<float>(light);
      }
    }
    return {{"image", images}, {"label", labels}};
  }

  const penstock::Example all_;
  std::mutex mutex_;
  penstock::Loader feed_;
};
