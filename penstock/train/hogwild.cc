#include "penstock/train/hogwild.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<HogwildBoard::Counts> all_counts(const HogwildBoard& board) {
  std::vector<HogwildBoard::Counts> counts;
  for (size_t i = 0; i < board.workers(); ++i) counts.push_back(board.counts(i));
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

// Clocks that are far away overflow.
Clock::time_point after(Clock::time_point from, int64_t ns) {
  constexpr int64_t kMost = int64_t{1} << 61;
  return from + std::chrono::nanoseconds(ns < 0 || ns > kMost ? kMost : ns);
}

}  // namespace

HogwildReport report_of(const HogwildBoard& board, std::span<const HogwildBoard::Counts> before,
                        double seconds) {
  HogwildReport report;
  report.seconds = seconds;
  uint64_t losses = 0;
  std::array<uint64_t, HogwildBoard::kBuckets> staleness{};
  for (size_t worker = 0; worker < board.workers(); ++worker) {
    const HogwildBoard::Counts now = board.counts(worker), &then = before[worker];
    report.steps += now.steps - then.steps;
    report.updates += now.applied - then.applied;
    report.skipped += now.skipped - then.skipped;
    report.non_finite += now.non_finite - then.non_finite;
    report.loss += now.loss_sum - then.loss_sum;
    losses += now.losses - then.losses;
    for (size_t i = 0; i < staleness.size(); ++i) {
      staleness[i] += now.staleness[i] - then.staleness[i];
    }
  }
  if (losses > 0) report.loss /= static_cast<double>(losses);
  for (size_t i = 0; i < staleness.size(); ++i) {
    if (staleness[i] > 0) report.staleness.emplace_back(HogwildBoard::least_of(i), staleness[i]);
  }
  return report;
}

// States of a worker's thread: working -> done. The first to fail stores its exception and stops
// the board, which ends the others before their next step. run() waits for all to be done.
class Hogwild::Run {
 public:
  Run(Hogwild& hogwild, const MakeStep& make) : hogwild_(hogwild), make_(make) {}

  void start() {
    try {
      working_ = hogwild_.workers_.size();
      threads_.reserve(working_);
      for (HogwildWorker& worker : hogwild_.workers_) {
        threads_.emplace_back([this, &worker] { work(worker); });
      }
    } catch (...) {  // no more threads
      join();
      throw;
    }
  }

  // Until all are done or the time has come; whether all are done.
  bool wait_until(Clock::time_point time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, time, [&] { return working_ == 0; });
  }

  void join() {
    if (!ended_by_itself()) hogwild_.board_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void rethrow() {
    if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  bool ended_by_itself() {
    std::lock_guard lock(mutex_);
    return working_ == 0;
  }

  void work(HogwildWorker& worker) {
    const HogwildBoard& board = hogwild_.board_;
    uint64_t step = 0;
    std::exception_ptr error;
    try {
      worker.begin();
      const Step next = make_(worker);
      while (board.take()) {
        if (!next()) {
          board.untake();
          break;
        }
        board.note_step(worker.number());
        // Not before: a feed that is first asked by a step starts its threads there, which would
        // stay on these cores, too.
        if (step++ == 0) stay_in_group(worker.number());
      }
    } catch (...) {
      error = std::current_exception();
      board.stop();
    }
    std::lock_guard lock(mutex_);
    if (error != nullptr && error_ == nullptr) {
      error_ = std::move(error);
      hogwild_.failed_ = Failed{worker.number(), step};
    }
    error = nullptr;  // before another thread may look at it
    --working_;
    changed_.notify_all();
  }

  void stay_in_group(size_t worker) {
    const size_t groups = hogwild_.options_.replicas;
    if (groups > 1) os::stay_on(os::near_cores(groups)[hogwild_.group_of(worker)]);
  }

  Hogwild& hogwild_;
  const MakeStep& make_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t working_ = 0;
  std::exception_ptr error_;
};

Hogwild::Hogwild(Updater& updater, size_t workers, Options options)
    : updater_(updater),
      options_(options),
      board_(
          HogwildBoard::make(workers, updater.parameters().slab().kind() == Slab::Kind::kShared)) {
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
                          updater.optimizer(), state, board_, number,
                          HogwildWorker::Options{.shares_state = !options_.own_state,
                                                 .non_finite = options_.non_finite,
                                                 .snapshots = options_.snapshots,
                                                 .replica = replica,
                                                 .merge_every = options_.merge_every});
    workers_.back().set_updates(updater.step());
  }
}

size_t Hogwild::group_of(size_t worker) const {
  return worker * options_.replicas / board_.workers();
}

HogwildReport Hogwild::run(const MakeStep& make, const Until& until) {
  failed_.reset();
  board_.begin(until.steps, updater_.step());
  for (const auto& replica : replicas_) replica->begin();
  const auto before = all_counts(board_);
  const auto began = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  const auto end = after(began, until.duration_ns);
  Run run(*this, make);
  std::exception_ptr error;
  try {
    run.start();
    while (true) {
      const auto ask = until.enough ? after(Clock::now(), until.ask_every_ns) : end;
      if (run.wait_until(std::min(ask, end))) break;
      if (Clock::now() >= end) break;
      if (until.enough && until.enough(report_of(board_, before, seconds()))) break;
    }
  } catch (...) {
    error = std::current_exception();
  }
  run.join();
  for (const auto& replica : replicas_) replica->merge();
  updater_.set_step(board_.updates());
  if (error != nullptr) std::rethrow_exception(std::move(error));
  run.rethrow();
  return report_of(board_, before, seconds());
}

}  // namespace penstock::train
