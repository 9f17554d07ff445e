#pragma once

#include <string>

#include "penstock/train/optimizer.h"

namespace penstock::train {

// Optimizers as text (JSON), for another process of the same program: all numbers come back
// exactly. Any thread.
struct OptimizerText {
  static std::string of(const Optimizer& optimizer);
  // Error kDataLoss if it is no such text.
  static Optimizer read(const std::string& text);
};

}  // namespace penstock::train
