#pragma once

#include <torch/nn/modules/linear.h>

namespace penstock::torch::testing {

// 6 numbers in, 3 out.
struct Net : ::torch::nn::Module {
  ::torch::nn::Linear first{6, 5}, second{5, 3};

  Net() {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
};

}  // namespace penstock::torch::testing
