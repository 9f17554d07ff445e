#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "penstock/train/kernels.h"
#include "penstock/train/schedule.h"

namespace penstock::train {

// A formula with its hyper-parameters. It has no memory: what it needs to remember, an Updater
// holds. A value that does not change; any thread.
//
// Formulas are PyTorch's, in float32, g the gradient after scaling, clipping and L2 decay.
class Optimizer {
 public:
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  // What all of them have.
  struct Common {
    double weight_decay = 0;  // L2, added to the gradient; AdamW's is taken off the weights instead
    double clip_value = kNone;  // each element to [-clip_value, clip_value]
    double clip_norm =
        kNone;  // the whole, to this Euclidean norm: times min(1, clip / (norm + 1e-6))
  };
  struct RmsProp {
    double alpha = 0.99;  // what is kept of the mean of squares at each update
    double eps = 1e-8;
    bool centered = false;  // divide by the standard deviation, not by the root of the mean square
  };
  struct Adam {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
  };

  // Each throws Error kInvalidArgument for hyper-parameters that cannot be: rates and weight decay
  // are not negative, what is kept of a state is in [0, 1), eps and clips are above 0, and only one
  // of the clips is given.
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
  // m and v as means of g and g^2, corrected for their start at 0. Kingma and Ba 2015.
  static Optimizer adam(Schedule lr, Adam options, Common common);
  // The same, with w *= 1 - lr * weight_decay in place of L2. Loshchilov and Hutter 2019.
  static Optimizer adamw(Schedule lr, Adam options, Common common);

  const std::string& name() const { return name_; }  // as above: "sgd", "adamw", ...
  size_t state_slabs() const;                        // that it needs: 0, 1 or 2
  float initial_state() const { return initial_; }   // what all floats of them begin with
  const Schedule& lr() const { return lr_; }
  double clip_norm() const { return common_.clip_norm; }

  // The numbers for the update that follows `step` updates. `scale` is multiplied into the
  // gradient; `norm` is the gradient's own, before that, and counts only if this clips by norm.
  // `seen`: updates that the state has seen, where it is not all of them.
  kernels::Pass pass(uint64_t step, double scale, double norm, uint64_t seen) const;
  kernels::Pass pass(uint64_t step, double scale, double norm) const {
    return pass(step, scale, norm, step);
  }

 private:
  friend struct OptimizerText;  // optimizer_text.cc
  Optimizer(std::string name, kernels::Formula formula, Schedule lr, Common common);

  std::string name_;
  kernels::Formula formula_;
  Schedule lr_;
  Common common_;
  bool decoupled_ = false;
  double memory_ = 0, memory2_ = 0, eps_ = 0;
  float initial_ = 0;
};

}  // namespace penstock::train
