#pragma once

#include <cstdint>
#include <vector>

namespace penstock::train {

// The learning rate as a function of the step: how many updates were applied before this one, from
// 0. A value that does not change; any thread.
//
// All throw Error kInvalidArgument for numbers that are not finite or negative, and for 0 steps.
class Schedule {
 public:
  Schedule(double lr);  // always lr; not explicit: a number is a schedule

  // lr, times `factor` from each of these steps on. They ascend. PyTorch's MultiStepLR.
  static Schedule steps(double lr, std::vector<uint64_t> at, double factor = 0.1);
  // lr * factor ^ (step / every), in between too. With every = 1 PyTorch's ExponentialLR.
  static Schedule exponential(double lr, double factor, uint64_t every = 1);
  // Half a cosine from lr at step 0 down to `end` at step `steps`, where it stays. Loshchilov and
  // Hutter 2017, without restarts; PyTorch's CosineAnnealingLR up to there.
  static Schedule cosine(double lr, uint64_t steps, double end = 0);

  // The same, `steps` later: it rises in a line to what this one has at its step 0, by (step + 1) /
  // (steps + 1) of it. Error kInvalidArgument if this one has a warm-up already.
  Schedule after_warmup(uint64_t steps) const;

  double at(uint64_t step) const;

  // What it is made of, for whoever sends one to another process. Error kInvalidArgument: numbers
  // that no schedule has.
  struct Numbers {
    uint64_t kind = 0;
    double lr = 0, factor = 1;
    uint64_t length = 1, warmup = 0;
    std::vector<uint64_t> at;
  };
  Numbers numbers() const;
  static Schedule from_numbers(const Numbers& numbers);

 private:
  friend struct OptimizerText;  // optimizer_text.cc
  enum class Kind : uint8_t { kConstant, kSteps, kExponential, kCosine };
  double decayed(uint64_t step) const;

  Kind kind_ = Kind::kConstant;
  double lr_;
  double factor_ = 1;  // kCosine: where it ends
  uint64_t length_ = 1;
  uint64_t warmup_ = 0;
  std::vector<uint64_t> at_;
};

}  // namespace penstock::train
