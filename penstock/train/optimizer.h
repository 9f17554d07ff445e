#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "penstock/train/kernels.h"

namespace penstock::train {

// The learning rate as a function of the step. Step n is the update after n updates, from 0. An
// immutable value. Threads: any.
//
// All members throw Error kInvalidArgument for numbers that are negative or not finite, and for 0
// steps.
class Schedule {
 public:
  Schedule(double lr);  // constant; not explicit: a number is a schedule

  // lr, multiplied by `factor` at each of these steps, which ascend. PyTorch's MultiStepLR.
  static Schedule steps(double lr, std::vector<uint64_t> at, double factor = 0.1);
  // lr * factor ^ (step / every), with a real exponent. With every = 1 PyTorch's ExponentialLR.
  static Schedule exponential(double lr, double factor, uint64_t every = 1);
  // Half a cosine from lr at step 0 down to `end` at step `steps`, constant afterwards. Loshchilov
  // and Hutter 2017, without restarts; until then PyTorch's CosineAnnealingLR.
  static Schedule cosine(double lr, uint64_t steps, double end = 0);

  // This schedule after a linear warm-up of `steps` steps: step s has (s + 1) / (steps + 1) of this
  // schedule's first rate. Error kInvalidArgument: this schedule already has a warm-up.
  Schedule after_warmup(uint64_t steps) const;

  double at(uint64_t step) const;

  // The schedule's parts, to send it to another process. Error kInvalidArgument: not the parts of a
  // schedule.
  struct Numbers {
    uint64_t kind = 0;
    double lr = 0, factor = 1;
    uint64_t length = 1, warmup = 0;
    std::vector<uint64_t> at;
  };
  Numbers numbers() const;
  static Schedule from_numbers(const Numbers& numbers);

 private:
  friend struct OptimizerText;
  enum class Kind : uint8_t { kConstant, kSteps, kExponential, kCosine };
  double decayed(uint64_t step) const;

  Kind kind_ = Kind::kConstant;
  double lr_;
  double factor_ = 1;  // kCosine: the last rate
  uint64_t length_ = 1;
  uint64_t warmup_ = 0;
  std::vector<uint64_t> at_;
};

// A formula with its hyper-parameters. It has no state; an Updater has. An immutable value.
// Threads: any.
//
// The formulas are PyTorch's, in float32; g is the gradient after scaling, clipping and L2 decay.
class Optimizer {
 public:
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  // Options of all optimizers.
  struct Common {
    double weight_decay = 0;    // L2, added to the gradient; AdamW decays the weights instead
    double clip_value = kNone;  // clips each element to [-clip_value, clip_value]
    // Clips the Euclidean norm: the gradient is multiplied by min(1, clip_norm / (norm + 1e-6)).
    double clip_norm = kNone;
  };
  struct RmsProp {
    double alpha = 0.99;  // decay factor of the mean of squares
    double eps = 1e-8;
    bool centered = false;  // divide by the standard deviation instead of the root mean square
  };
  struct Adam {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
  };

  // Each throws Error kInvalidArgument for an invalid hyper-parameter: rates and weight decay are
  // at least 0, decay factors of states are in [0, 1), eps and clips are above 0, and at most one
  // clip is given.
  //
  // w -= lr * g
  static Optimizer sgd(Schedule lr, Common common);
  static Optimizer sgd(Schedule lr) { return sgd(std::move(lr), Common()); }
  // v = momentum * v + g; w -= lr * v. Sutskever et al. 2013, in PyTorch's form.
  static Optimizer momentum(Schedule lr, double momentum, Common common);
  // The same v; w -= lr * (g + momentum * v).
  static Optimizer nesterov(Schedule lr, double momentum, Common common);
  // s = s + g^2; w -= lr * g / (sqrt(s) + eps). Duchi et al. 2011. s begins at `initial`.
  static Optimizer adagrad(Schedule lr, double eps, double initial, Common common);
  // s = alpha * s + (1 - alpha) * g^2; w -= lr * g / (sqrt(s) + eps). Hinton's lecture 6e.
  static Optimizer rmsprop(Schedule lr, RmsProp options, Common common);
  // Means m of g and v of g^2, with bias correction. Kingma and Ba 2015.
  static Optimizer adam(Schedule lr, Adam options, Common common);
  // Adam with w *= 1 - lr * weight_decay in place of L2. Loshchilov and Hutter 2019.
  static Optimizer adamw(Schedule lr, Adam options, Common common);

  const std::string& name() const { return name_; }  // lower case: "sgd", "adamw", ...
  size_t state_slabs() const;                        // number of state slabs: 0, 1 or 2
  float initial_state() const { return initial_; }   // initial value of all floats in them
  const Schedule& lr() const { return lr_; }
  double clip_norm() const { return common_.clip_norm; }

  // The numbers of the update after `step` updates. The gradient is multiplied by `scale`; `norm`
  // is its norm before that, used only for clipping by norm. `seen`: updates that the state has
  // seen, if not all.
  kernels::Pass pass(uint64_t step, double scale, double norm, uint64_t seen) const;
  kernels::Pass pass(uint64_t step, double scale, double norm) const {
    return pass(step, scale, norm, step);
  }

 private:
  friend struct OptimizerText;
  Optimizer(std::string name, kernels::Formula formula, Schedule lr, Common common);

  std::string name_;
  kernels::Formula formula_;
  Schedule lr_;
  Common common_;
  bool decoupled_ = false;
  double memory_ = 0, memory2_ = 0, eps_ = 0;
  float initial_ = 0;
};

// Optimizers as JSON text, for another process of the same program; all numbers are restored
// exactly. Threads: any.
struct OptimizerText {
  static std::string of(const Optimizer& optimizer);
  // Error kDataLoss: not such a text.
  static Optimizer read(const std::string& text);
};

}  // namespace penstock::train
