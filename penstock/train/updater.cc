#include "penstock/train/updater.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/train/gradient_parts.h"

namespace penstock::train {
Updater::Updater(Parameters parameters, Optimizer optimizer, Options options)
    : parameters_(std::move(parameters)), optimizer_(std::move(optimizer)), options_(options) {
  for (size_t i = 0; i < optimizer_.state_slabs(); ++i) {
    state_.push_back(Slab::make(parameters_.layout(), options_.state));
    states_[i] = state_[i].values().data();
    std::ranges::fill(state_[i].values(), optimizer_.initial_state());
  }
}

Updater::Updater(Parameters parameters, Optimizer optimizer, NonFinite non_finite,
                 std::vector<Slab> state)
    : parameters_(std::move(parameters)),
      optimizer_(std::move(optimizer)),
      options_{.non_finite = non_finite},
      state_(std::move(state)) {
  if (state_.size() != optimizer_.state_slabs()) {
    throw Error(Code::kInvalidArgument, "Updater",
                optimizer_.name() + " has " + std::to_string(optimizer_.state_slabs()) +
                    " state slabs; " + std::to_string(state_.size()) + " were given");
  }
  for (size_t i = 0; i < state_.size(); ++i) {
    parameters_.layout().require_equal(state_[i].layout(), "Updater", "the state");
    states_[i] = state_[i].values().data();
  }
}

Error Updater::not_finite(const std::string& what) const {
  return Error(Code::kInvalidArgument, "apply",
               "the gradient of update " + std::to_string(step_) + " is not finite: " + what +
                   ". Nothing was changed. See non_finite for other policies");
}

template <typename Describe>
bool Updater::accept(double squares, double scale, Describe describe) {
  if (!std::isfinite(squares)) {
    if (options_.non_finite == NonFinite::kRaise) {
      throw not_finite(describe());
    }
    ++non_finite_;
    if (options_.non_finite == NonFinite::kSkip) {
      ++skipped_;
      return false;
    }
  }
  norm_ = std::sqrt(squares) * std::abs(scale);
  return true;
}

void Updater::advance() {
  ++step_;
  parameters_.advance();
}

bool Updater::apply(const Slab& gradients, double scale) {
  check_gradients(parameters_.slab(), gradients);
  check_scale("apply", scale);
  const auto weights = parameters_.slab().values();
  const auto values = gradients.values();
  std::lock_guard lock(mutex_);
  const double squares = kernels::sum_of_squares(values);
  if (!accept(squares, scale, [&] { return describe_not_finite(gradients); })) return false;
  kernels::update(optimizer_.pass(step_, scale, std::sqrt(squares)), weights.data(), values.data(),
                  states_[0], states_[1], weights.size());
  advance();
  return true;
}

void Updater::check(std::span<const GradientPart> parts) {
  std::lock_guard lock(mutex_);
  parts_.set("apply_rows", parameters_.layout(), parts);
  if (options_.non_finite != NonFinite::kRaise || parts_.finite()) return;
  throw not_finite(parts_.describe_not_finite());
}

bool Updater::apply_parts(std::span<const GradientPart> parts, double scale) {
  check_scale("apply_rows", scale);
  std::lock_guard lock(mutex_);
  parts_.set("apply_rows", parameters_.layout(), parts);
  parts_.check_apart_from("apply_rows", parameters_.slab());
  const double squares = parts_.squares();
  if (!accept(squares, scale, [&] { return parts_.describe_not_finite(); })) return false;
  const kernels::Pass pass = optimizer_.pass(step_, scale, std::sqrt(squares));
  float* weights = parameters_.slab().values().data();
  for (const GradientParts::Piece& piece : parts_.pieces()) {
    kernels::update(pass, weights + piece.at, piece.values.data(),
                    states_[0] == nullptr ? nullptr : states_[0] + piece.at,
                    states_[1] == nullptr ? nullptr : states_[1] + piece.at, piece.values.size());
  }
  advance();
  return true;
}

bool Updater::apply_rows(std::string_view block, std::span<const int64_t> rows,
                         std::span<const float> values, double scale) {
  const GradientPart part{std::string(block), values, true, rows};
  return apply_parts({&part, 1}, scale);
}

uint64_t Updater::step() const {
  std::lock_guard lock(mutex_);
  return step_;
}
uint64_t Updater::skipped() const {
  std::lock_guard lock(mutex_);
  return skipped_;
}
uint64_t Updater::non_finite() const {
  std::lock_guard lock(mutex_);
  return non_finite_;
}
double Updater::norm() const {
  std::lock_guard lock(mutex_);
  return norm_;
}
double Updater::lr() const {
  std::lock_guard lock(mutex_);
  return optimizer_.lr().at(step_);
}
void Updater::set_step(uint64_t step) {
  std::lock_guard lock(mutex_);
  step_ = step;
}

}  // namespace penstock::train
