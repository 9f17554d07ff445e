#pragma once

#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "digits.h"

// The reference of the examples, and the measurement.

constexpr double kRate = 0.05;

// torch's own loop.
template <class Model>
void plain(Model& model, Digits& digits, uint64_t steps) {
  torch::optim::SGD optimizer(model.parameters(), kRate);
  for (uint64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    loss_of(model, digits.take()).backward();
    optimizer.step();
  }
}

struct Learnt {
  double rate;  // batches a second
  std::vector<at::Tensor> weights;
};

// learn(model, digits, steps) takes steps * at_once batches of `size`: first a short warm-up, then
// on a new model, which is measured and compared with `base`. Exits with an error if the model has
// not learnt.
template <class Model, class Learn>
Learnt measured(const std::string& title, uint64_t size, uint64_t at_once, uint64_t steps,
                double base, Learn learn) {
  {
    Digits digits(256, size);
    Model warm;
    learn(warm, digits, 1 + steps / 20);
  }
  torch::manual_seed(1);
  Model model;
  Digits digits(4096, size);
  const auto start = std::chrono::steady_clock::now();
  learn(model, digits, steps);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const double rate = static_cast<double>(steps * at_once) / seconds.count();
  const at::NoGradGuard no_grad;
  const double loss = loss_of(model, digits.all()).template item<double>();
  std::printf("%-32s %6.0f batches/s, x %.2f, loss %.4f\n", title.c_str(), rate,
              base > 0 ? rate / base : 1, loss);
  if (!(loss < 1)) std::exit(1);  // chance is 2.3
  Learnt learnt{rate, {}};
  for (const at::Tensor& weight : model.parameters()) learnt.weights.push_back(weight.clone());
  return learnt;
}
