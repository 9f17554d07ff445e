#include "penstock/train/schedule.h"

#include <algorithm>
#include <cmath>
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
  if (warmup_ > 0) throw refuse_schedule("it has a warm-up already");
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

}  // namespace penstock::train
