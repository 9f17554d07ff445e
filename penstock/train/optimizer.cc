#include "penstock/train/optimizer.h"

#include <cmath>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::train {
namespace {

using kernels::Formula;

// Refuses hyper-parameters, in the name of their optimizer.
struct Check {
  const std::string& optimizer;

  double refuse(const char* name, double value, const char* rule) const {
    throw Error(Code::kInvalidArgument, optimizer,
                std::string(name) + " is " + std::to_string(value) + "; it must be " + rule);
  }
  double not_negative(const char* name, double value) const {
    return std::isfinite(value) && value >= 0 ? value : refuse(name, value, "0 or more");
  }
  double part(const char* name, double value) const {
    return value >= 0 && value < 1 ? value : refuse(name, value, "at least 0 and below 1");
  }
  // As a float too: what divides must not vanish.
  double positive(const char* name, double value) const {
    return std::isfinite(value) && static_cast<float>(value) > 0 ? value
                                                                 : refuse(name, value, "above 0");
  }
};

}  // namespace

Optimizer::Optimizer(std::string name, Formula formula, Schedule lr, Common common)
    : name_(std::move(name)), formula_(formula), lr_(std::move(lr)), common_(common) {
  const Check check{name_};
  check.not_negative("weight_decay", common_.weight_decay);
  const bool by_value = common_.clip_value != kNone;
  const bool by_norm = common_.clip_norm != kNone;
  if (by_value) check.positive("clip_value", common_.clip_value);
  if (by_norm) check.positive("clip_norm", common_.clip_norm);
  if (by_value && by_norm) {
    throw Error(Code::kInvalidArgument, name_, "give one of clip_value and clip_norm, not both");
  }
}

Optimizer Optimizer::sgd(Schedule lr, Common common) {
  return Optimizer("sgd", Formula::kSgd, std::move(lr), common);
}

Optimizer Optimizer::momentum(Schedule lr, double momentum, Common common) {
  Optimizer made("momentum", Formula::kMomentum, std::move(lr), common);
  made.memory_ = Check{made.name_}.part("momentum", momentum);
  return made;
}

Optimizer Optimizer::nesterov(Schedule lr, double momentum, Common common) {
  Optimizer made("nesterov", Formula::kNesterov, std::move(lr), common);
  made.memory_ = Check{made.name_}.part("momentum", momentum);
  return made;
}

Optimizer Optimizer::adagrad(Schedule lr, double eps, double initial, Common common) {
  Optimizer made("adagrad", Formula::kAdagrad, std::move(lr), common);
  made.eps_ = Check{made.name_}.positive("eps", eps);
  made.initial_ = static_cast<float>(Check{made.name_}.not_negative("initial", initial));
  return made;
}

Optimizer Optimizer::rmsprop(Schedule lr, RmsProp options, Common common) {
  const auto formula = options.centered ? Formula::kCenteredRmsProp : Formula::kRmsProp;
  Optimizer made("rmsprop", formula, std::move(lr), common);
  made.memory_ = Check{made.name_}.part("alpha", options.alpha);
  made.eps_ = Check{made.name_}.positive("eps", options.eps);
  return made;
}

Optimizer Optimizer::adam(Schedule lr, Adam options, Common common) {
  Optimizer made("adam", Formula::kAdam, std::move(lr), common);
  made.memory_ = Check{made.name_}.part("beta1", options.beta1);
  made.memory2_ = Check{made.name_}.part("beta2", options.beta2);
  made.eps_ = Check{made.name_}.positive("eps", options.eps);
  return made;
}

Optimizer Optimizer::adamw(Schedule lr, Adam options, Common common) {
  Optimizer made = adam(std::move(lr), options, common);
  made.name_ = "adamw";
  made.decoupled_ = true;
  return made;
}

size_t Optimizer::state_slabs() const {
  switch (formula_) {
    case Formula::kSgd:
      return 0;
    case Formula::kCenteredRmsProp:
    case Formula::kAdam:
      return 2;
    default:
      return 1;
  }
}

kernels::Pass Optimizer::pass(uint64_t step, double scale, double norm, uint64_t seen) const {
  const double rate = lr_.at(step);
  if (common_.clip_norm != kNone) {
    scale *= std::min(1.0, common_.clip_norm / (norm * std::abs(scale) + 1e-6));
  }
  kernels::Pass pass;
  pass.formula = formula_;
  pass.scale = static_cast<float>(scale);
  pass.clip = static_cast<float>(common_.clip_value);
  if (decoupled_) {
    pass.keep = static_cast<float>(1 - rate * common_.weight_decay);
  } else {
    pass.decay = static_cast<float>(common_.weight_decay);
  }
  pass.rate = static_cast<float>(rate);
  pass.memory = static_cast<float>(memory_);
  pass.fresh = static_cast<float>(1 - memory_);
  pass.memory2 = static_cast<float>(memory2_);
  pass.fresh2 = static_cast<float>(1 - memory2_);
  pass.eps = static_cast<float>(eps_);
  if (formula_ == Formula::kAdam) {
    const double t = static_cast<double>(seen) + 1;
    pass.rate = static_cast<float>(rate / (1 - std::pow(memory_, t)));
    pass.root = static_cast<float>(1 / std::sqrt(1 - std::pow(memory2_, t)));
  }
  return pass;
}

}  // namespace penstock::train
