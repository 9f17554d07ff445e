#include "penstock/train/hogwild.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::train {
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
