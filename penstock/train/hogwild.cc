#include "penstock/train/hogwild.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"
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
  parts_.check_apart_from("apply", parameters_.slab());
  if (options_.snapshots == Snapshots::kUpdate) parts_.check_apart_from("apply", weights_.slab());
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

namespace {

using Clock = std::chrono::steady_clock;

std::vector<SharedCounters::Counts> all_counts(const SharedCounters& counters) {
  std::vector<SharedCounters::Counts> counts;
  for (size_t i = 0; i < counters.workers(); ++i) counts.push_back(counters.counts(i));
  return counts;
}

std::vector<Slab> copies(std::vector<Slab> slabs) {
  for (Slab& slab : slabs) {
    const Slab own = Slab::make(slab.layout());
    own.copy_from(slab);
    slab = own;
  }
  return slabs;
}

// Times in the far future overflow.
Clock::time_point after(Clock::time_point from, int64_t ns) {
  constexpr int64_t kMaxNs = int64_t{1} << 61;
  return from + std::chrono::nanoseconds(ns < 0 || ns > kMaxNs ? kMaxNs : ns);
}

}  // namespace

HogwildReport report_of(const SharedCounters& counters,
                        std::span<const SharedCounters::Counts> before, double seconds) {
  HogwildReport report;
  report.seconds = seconds;
  uint64_t losses = 0;
  double loss = 0, recent = 0;
  std::array<uint64_t, SharedCounters::kBuckets> staleness{};
  for (size_t worker = 0; worker < counters.workers(); ++worker) {
    const SharedCounters::Counts now = counters.counts(worker), &then = before[worker];
    report.steps += now.steps - then.steps;
    report.updates += now.applied - then.applied;
    report.skipped += now.skipped - then.skipped;
    report.non_finite += now.non_finite - then.non_finite;
    report.copied += now.copied - then.copied;
    report.workers.emplace_back(now.steps - then.steps, now.applied - then.applied);
    loss += now.loss_sum - then.loss_sum;
    losses += now.losses - then.losses;
    recent += static_cast<double>(now.losses - then.losses) * now.recent_loss;
    for (size_t i = 0; i < staleness.size(); ++i) {
      staleness[i] += now.staleness[i] - then.staleness[i];
    }
  }
  if (losses > 0) {
    report.loss = loss / static_cast<double>(losses);
    report.recent_loss = recent / static_cast<double>(losses);
  }
  for (size_t i = 0; i < staleness.size(); ++i) {
    if (staleness[i] > 0)
      report.staleness.emplace_back(SharedCounters::bucket_min(i), staleness[i]);
  }
  return report;
}

Hogwild::Hogwild(Updater& updater, size_t workers, Options options)
    : updater_(&updater),
      options_(options),
      counters_(SharedCounters::make(workers,
                                     updater.parameters().slab().kind() == Slab::Kind::kShared)) {
  if (workers == 0) throw Error(Code::kInvalidArgument, "Hogwild", "give 1 worker or more");
  const size_t groups = options_.replicas;
  if (groups == 0 || groups > workers) {
    throw Error(Code::kInvalidArgument, "Hogwild",
                std::to_string(groups) + " replicas for " + std::to_string(workers) +
                    " workers; each group has 1 worker or more");
  }
  if (groups > 1) replicas_ = Replica::make(updater.parameters(), groups, updater.step());
  std::vector<Slab> state = updater.state();
  for (size_t number = 0; number < workers; ++number) {
    const size_t group = group_of(number);
    const bool first = number == 0 || group != group_of(number - 1);
    if (number > 0 && (first || options_.own_state)) state = copies(updater.state());
    const auto replica = groups > 1 ? replicas_[group] : nullptr;
    workers_.emplace_back(replica ? replica->parameters() : updater.parameters(),
                          updater.optimizer(), state, counters_, number,
                          HogwildWorker::Options{.shares_state = !options_.own_state,
                                                 .non_finite = options_.non_finite,
                                                 .snapshots = options_.snapshots,
                                                 .replica = replica,
                                                 .merge_every = options_.merge_every});
    workers_.back().set_updates(updater.step());
  }
}

size_t Hogwild::group_of(size_t worker) const {
  return worker * options_.replicas / counters_.workers();
}

Hogwild::Hogwild(Updater& updater, SharedCounters counters)
    : updater_(&updater), options_(), counters_(std::move(counters)) {}

Hogwild::Hogwild(SharedCounters counters)
    : updater_(nullptr), options_(), counters_(std::move(counters)) {}

HogwildReport Hogwild::run(const MakeStep& make, const Until& until) {
  return run_workers([&](size_t number) { work(workers_[number], make); }, until);
}

void Hogwild::work(HogwildWorker& worker, const MakeStep& make) {
  worker.begin();
  const Step next = make(worker);
  for (bool first = true; counters_.claim_step(); first = false) {
    if (!next()) {
      counters_.return_step();
      break;
    }
    counters_.note_step(worker.number());
    // After the first step only: a feed may start threads in the first call for a batch, and they
    // would inherit these cores.
    if (first && options_.replicas > 1) {
      os::pin_to_cores(os::core_groups(options_.replicas)[group_of(worker.number())]);
    }
  }
}

HogwildReport Hogwild::run_workers(const std::function<void(size_t)>& work, const Until& until,
                                   Threading threading, const std::function<void()>& started) {
  failed_.reset();
  counters_.begin(until.steps, updater_ == nullptr ? 0 : updater_->step());
  for (const auto& replica : replicas_) replica->begin();
  const auto before = all_counts(counters_);
  auto began = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  std::mutex mutex;
  std::exception_ptr thrown;  // the first exception; guarded by mutex, as is failed_
  const auto job = [&](size_t number) {
    try {
      work(number);
    } catch (...) {
      counters_.stop();  // other workers end before their next step
      const std::lock_guard lock(mutex);
      if (thrown != nullptr) return;
      thrown = std::current_exception();
      failed_ = Failed{number, counters_.counts(number).steps - before[number].steps};
    }
  };
  std::exception_ptr error;
  try {
    ThreadGroup threads(counters_.workers(), std::move(threading));
    threads.begin(job);
    try {
      if (started) started();
      began = Clock::now();
      const auto end = after(began, until.duration_ns);
      while (true) {
        const auto ask = until.enough ? after(Clock::now(), until.ask_every_ns) : end;
        if (threads.wait_until(std::min(ask, end)) || Clock::now() >= end) break;
        if (until.enough && until.enough(report_of(counters_, before, seconds()))) break;
      }
    } catch (...) {
      error = std::current_exception();
    }
    counters_.stop();
  } catch (...) {  // a thread could not start
    error = std::current_exception();
  }
  for (const auto& replica : replicas_) replica->merge();
  if (updater_ != nullptr) updater_->set_step(counters_.updates());
  if (error != nullptr) std::rethrow_exception(std::move(error));
  if (thrown != nullptr) std::rethrow_exception(std::move(thrown));
  return report_of(counters_, before, seconds());
}

}  // namespace penstock::train
