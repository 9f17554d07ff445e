#include "penstock/train/hogwild_worker.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/train/gradient_parts.h"
#include "penstock/train/relaxed.h"

namespace penstock::train {

HogwildWorker::HogwildWorker(Parameters parameters, Optimizer optimizer, std::vector<Slab> state,
                             SharedCounters counters, size_t number, Options options)
    : parameters_(std::move(parameters)),
      weights_(options.snapshots == Snapshots::kNone ? parameters_
                                                     : Parameters(parameters_.layout())),
      optimizer_(std::move(optimizer)),
      state_(std::move(state)),
      counters_(std::move(counters)),
      number_(number),
      options_(std::move(options)),
      read_version_(parameters_.version()),
      pace_(options_.merge_every) {
  if (state_.size() != optimizer_.state_slabs() || number_ >= counters_.workers()) {
    throw Error(Code::kInvalidArgument, "Hogwild",
                "a worker needs the optimizer's slabs of state, and counters with its number");
  }
  for (size_t i = 0; i < state_.size(); ++i) {
    parameters_.layout().require_equal(state_[i].layout(), "Hogwild", "the optimizer's state");
    states_[i] = state_[i].values().data();
  }
}

void HogwildWorker::begin() {
  current_ = false;
  read();
}

bool HogwildWorker::up_to_date() const {
  // One further update may as well come during a step.
  return options_.snapshots == Snapshots::kNone ||
         (current_ && parameters_.version() - carried_version_ <= 1);
}

void HogwildWorker::read() {
  const bool copies = options_.snapshots != Snapshots::kNone;
  const bool carried = copies && up_to_date();
  current_ = false;
  if (carried) return;
  read_version_ = parameters_.version();
  if (copies) relaxed::read(parameters_.slab().values().data(), weights_.slab().values());
}

template <typename Describe>
bool HogwildWorker::accept(bool finite, Describe describe) {
  if (finite) return true;
  if (options_.non_finite == NonFinite::kRaise) {
    throw Error(Code::kInvalidArgument, "Hogwild",
                "the gradient of worker " + std::to_string(number_) + " is not finite: " +
                    describe() + ". It was not applied. See non_finite for other policies");
  }
  const bool skips = options_.non_finite == NonFinite::kSkip;
  counters_.note_non_finite(number_, skips);
  return !skips;
}

// `squares` is called only if the optimizer clips by norm.
template <typename Squares>
kernels::Pass HogwildWorker::begin_update(double scale, Squares squares) {
  const double norm = optimizer_.clip_norm() == Optimizer::kNone ? 0 : std::sqrt(squares());
  carried_version_ = parameters_.version() + 1;  // other updates may end during this one
  counters_.note_begun(number_, 1);
  const uint64_t step = counters_.add_updates(1);
  uint64_t seen = own_updates_++;  // updates that the state has seen
  if (options_.shares_state) seen = options_.replica ? options_.replica->count(1) : step;
  return optimizer_.pass(step, scale, norm, seen);
}

// The snapshot, if this update writes to it: an update of all weights, without replicas. After an
// update of some weights the others would have to be read, and after a merge all.
float* HogwildWorker::carried(bool all) const {
  const bool carries = options_.snapshots == Snapshots::kUpdate && !options_.replica;
  return all && carries ? weights_.slab().values().data() : nullptr;
}

void HogwildWorker::update(const kernels::Pass& pass, size_t at, std::span<const float> gradients,
                           float* copy) {
  relaxed::update(pass, parameters_.slab().values().data() + at, gradients.data(),
                  states_[0] == nullptr ? nullptr : states_[0] + at,
                  states_[1] == nullptr ? nullptr : states_[1] + at, gradients.size(),
                  options_.shares_state, copy == nullptr ? nullptr : copy + at);
}

void HogwildWorker::end_update(uint64_t n, bool carried) {
  const uint64_t before = parameters_.slab().version().fetch_add(n, std::memory_order_acq_rel);
  counters_.note_applied(number_, n, before - std::min(before, read_version_));
  read_version_ = carried ? before + n : read_version_ + n;
  current_ = carried;
  if (options_.replica) pace_.after(n, *options_.replica);
}

bool HogwildWorker::apply(const Slab& gradients, double scale) {
  check_gradients(parameters_.slab(), gradients);
  check_gradients(weights_.slab(), gradients);
  check_scale("apply", scale);
  const auto values = gradients.values();
  if (!accept(kernels::finite(values), [&] { return describe_not_finite(gradients); })) {
    gradients.zero();
    return false;
  }
  const kernels::Pass pass = begin_update(scale, [&] { return kernels::sum_of_squares(values); });
  float* const copy = carried(true);
  // In pieces, so that each is zeroed while it is in the cache.
  for (size_t at = 0; at < values.size(); at += kernels::kPiece) {
    const auto piece = values.subspan(at, std::min(kernels::kPiece, values.size() - at));
    update(pass, at, piece, copy);
    std::ranges::fill(piece, 0.0f);
  }
  end_update(1, copy != nullptr);
  return true;
}

bool HogwildWorker::apply(std::span<const GradientPart> parts, double scale) {
  check_scale("apply", scale);
  parts_.set("apply", parameters_.layout(), parts);
  parts_.check_apart_from(parameters_.slab());
  if (options_.snapshots == Snapshots::kUpdate) parts_.check_apart_from(weights_.slab());
  const auto describe = [&] {
    const std::string found = parts_.describe_not_finite();
    return found.empty() ? "it was written to while it was applied" : found;
  };
  if (!accept(parts_.finite(), describe)) return false;
  const kernels::Pass pass = begin_update(scale, [&] { return parts_.squares(); });
  float* const copy = carried(parts_.floats() == parameters_.layout().parameters());
  for (const auto& piece : parts_.pieces()) update(pass, piece.at, piece.values, copy);
  end_update(1, copy != nullptr);
  return true;
}

void HogwildWorker::count(uint64_t n) {
  counters_.note_begun(number_, n);
  counters_.add_updates(n);
  own_updates_ += n;
  if (options_.replica) options_.replica->count(n);
  end_update(n, false);
}

}  // namespace penstock::train
