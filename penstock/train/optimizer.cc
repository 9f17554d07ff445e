#include "penstock/train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <string>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::train {
namespace {

Error refuse_schedule(const std::string& why) {
  return Error(Code::kInvalidArgument, "schedule", why);
}

double checked(const char* what, double value) {
  if (std::isfinite(value) && value >= 0) return value;
  throw refuse_schedule(std::string(what) + " is " + std::to_string(value) +
                        "; it must be a number that is not negative");
}

uint64_t checked_steps(const char* what, uint64_t steps) {
  if (steps == 0) throw refuse_schedule(std::string(what) + " is 0; it must be at least 1");
  return steps;
}

using kernels::Formula;

// Checks the hyper-parameters of an optimizer.
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
  // Also as a float: a divisor must not become 0.
  double positive(const char* name, double value) const {
    return std::isfinite(value) && static_cast<float>(value) > 0 ? value
                                                                 : refuse(name, value, "above 0");
  }
};

using Json = nlohmann::json;

// JSON has no infinity: null stands for it.
Json number(double value) { return value == Optimizer::kNone ? Json() : Json(value); }
double number(const Json& json) { return json.is_null() ? Optimizer::kNone : json.get<double>(); }

}  // namespace

Schedule::Schedule(double lr) : lr_(checked("lr", lr)) {}

Schedule Schedule::steps(double lr, std::vector<uint64_t> at, double factor) {
  if (!std::ranges::is_sorted(at))
    throw refuse_schedule("the steps at which it changes do not ascend");
  Schedule schedule(lr);
  schedule.kind_ = Kind::kSteps;
  schedule.factor_ = checked("factor", factor);
  schedule.at_ = std::move(at);
  return schedule;
}

Schedule Schedule::exponential(double lr, double factor, uint64_t every) {
  Schedule schedule(lr);
  schedule.kind_ = Kind::kExponential;
  schedule.factor_ = checked("factor", factor);
  schedule.length_ = checked_steps("every", every);
  return schedule;
}

Schedule Schedule::cosine(double lr, uint64_t steps, double end) {
  Schedule schedule(lr);
  schedule.kind_ = Kind::kCosine;
  schedule.factor_ = checked("end", end);
  schedule.length_ = checked_steps("steps", steps);
  return schedule;
}

Schedule Schedule::after_warmup(uint64_t steps) const {
  if (warmup_ > 0) throw refuse_schedule("the schedule already has a warm-up");
  Schedule schedule = *this;
  schedule.warmup_ = checked_steps("steps", steps);
  return schedule;
}

Schedule::Numbers Schedule::numbers() const {
  return {static_cast<uint64_t>(kind_), lr_, factor_, length_, warmup_, at_};
}

Schedule Schedule::from_numbers(const Numbers& numbers) {
  Schedule schedule(numbers.lr);
  switch (static_cast<Kind>(numbers.kind)) {
    case Kind::kConstant:
      break;
    case Kind::kSteps:
      schedule = steps(numbers.lr, numbers.at, numbers.factor);
      break;
    case Kind::kExponential:
      schedule = exponential(numbers.lr, numbers.factor, numbers.length);
      break;
    case Kind::kCosine:
      schedule = cosine(numbers.lr, numbers.length, numbers.factor);
      break;
    default:
      throw refuse_schedule("there is no kind " + std::to_string(numbers.kind));
  }
  return numbers.warmup > 0 ? schedule.after_warmup(numbers.warmup) : schedule;
}

double Schedule::at(uint64_t step) const {
  if (step >= warmup_) return decayed(step - warmup_);
  return decayed(0) * (static_cast<double>(step) + 1) / (static_cast<double>(warmup_) + 1);
}

double Schedule::decayed(uint64_t step) const {
  switch (kind_) {
    case Kind::kConstant:
      return lr_;
    case Kind::kSteps: {
      const auto passed = std::ranges::upper_bound(at_, step) - at_.begin();
      return lr_ * std::pow(factor_, static_cast<double>(passed));
    }
    case Kind::kExponential:
      return lr_ * std::pow(factor_, static_cast<double>(step) / static_cast<double>(length_));
    case Kind::kCosine: {
      if (step >= length_) return factor_;
      const double part = static_cast<double>(step) / static_cast<double>(length_);
      return factor_ + (lr_ - factor_) * (1 + std::cos(std::numbers::pi * part)) / 2;
    }
  }
  return lr_;
}

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

std::string OptimizerText::of(const Optimizer& optimizer) {
  const Schedule& lr = optimizer.lr_;
  return Json{{"name", optimizer.name_},
              {"formula", static_cast<int>(optimizer.formula_)},
              {"lr",
               {{"kind", static_cast<int>(lr.kind_)},
                {"lr", lr.lr_},
                {"factor", lr.factor_},
                {"length", lr.length_},
                {"warmup", lr.warmup_},
                {"at", lr.at_}}},
              {"weight_decay", optimizer.common_.weight_decay},
              {"clip_value", number(optimizer.common_.clip_value)},
              {"clip_norm", number(optimizer.common_.clip_norm)},
              {"decoupled", optimizer.decoupled_},
              {"memory", optimizer.memory_},
              {"memory2", optimizer.memory2_},
              {"eps", optimizer.eps_},
              {"initial", static_cast<double>(optimizer.initial_)}}
      .dump();
}

Optimizer OptimizerText::read(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    const Json& rate = json.at("lr");
    Schedule lr(rate.at("lr").get<double>());
    const int kind = rate.at("kind").get<int>();
    const int formula = json.at("formula").get<int>();
    if (kind < 0 || kind > static_cast<int>(Schedule::Kind::kCosine) || formula < 0 ||
        formula > static_cast<int>(kernels::Formula::kAdam)) {
      throw Error(Code::kDataLoss, "optimizer", "no such formula");
    }
    lr.kind_ = static_cast<Schedule::Kind>(kind);
    rate.at("factor").get_to(lr.factor_);
    rate.at("length").get_to(lr.length_);
    rate.at("warmup").get_to(lr.warmup_);
    rate.at("at").get_to(lr.at_);
    Optimizer made(json.at("name").get<std::string>(), static_cast<kernels::Formula>(formula), lr,
                   {.weight_decay = json.at("weight_decay").get<double>(),
                    .clip_value = number(json.at("clip_value")),
                    .clip_norm = number(json.at("clip_norm"))});
    json.at("decoupled").get_to(made.decoupled_);
    json.at("memory").get_to(made.memory_);
    json.at("memory2").get_to(made.memory2_);
    json.at("eps").get_to(made.eps_);
    made.initial_ = static_cast<float>(json.at("initial").get<double>());
    return made;
  } catch (const Json::exception& error) {
    throw Error(Code::kDataLoss, "optimizer", error.what());
  }
}

}  // namespace penstock::train
