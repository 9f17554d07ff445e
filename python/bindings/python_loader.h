#pragma once

#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "failure_raiser.h"
#include "gil.h"
#include "listed_tickets.h"
#include "loader_statistics.h"
#include "loader_workers.h"
#include "penstock/pipeline/engine/consumer.h"
#include "penstock/pipeline/engine/loader_state.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "plan_objects.h"
#include "python_batches.h"
#include "task_values.h"

namespace penstock::python {

// The result of next() after the last batch: a value that user code cannot make.
PyObject* end_marker();

// Python's side of a Loader's engine: the consumer's calls, and what ends the Loader. Behind
// penstock.Loader. Plans of Datasets have ChainWorkers, whose batches are elements (PlanObjects);
// plans of Python's data sets, samplers and generators have PythonWorkers, whose batches are Python
// objects or rows of a Sample's structure (PythonBatches).
//
// Threads: next() and calls that move the position hold `consuming_` (taken without the GIL).
// close() may be called from any thread at any time, also during next().
class PythonLoader : private Consumer::Policy {
 public:
  explicit PythonLoader(nanobind::dict settings);
  ~PythonLoader() override;

  uint64_t begin_iteration() { return consumer_->begin_iteration(); }
  bool is_current(uint64_t serial) const { return consumer_->is_current(serial); }
  // The next batch; END: the epoch or the iteration has ended. Error kInvalidArgument: the
  // iteration was overtaken.
  nanobind::object next(uint64_t serial);
  // Whether a batch's exception ended the last iteration. Then the position is that batch.
  bool failed() const { return consumer_->failed(); }
  // Whether the last batch of the pass with `epoch` in it was taken.
  bool gave_all(uint64_t epoch) const { return engine_->gave_all(epoch); }
  void check_open() override;
  void begin_epoch(uint64_t epoch);
  void seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead);
  nanobind::tuple position();
  std::vector<uint64_t> ahead();
  uint64_t steps() const { return plan().known_length().value_or(kEndless); }
  bool holds();  // whether elements of a taken ticket are left
  // The first epoch of the next pass. Goes there if the last pass is unfinished. `resumed`: the
  // position was set, so its pass continues.
  uint64_t begin_pass(bool resumed);
  LoaderState state() const { return engine_->state(); }
  uint64_t rounds() const { return plan().rounds(); }
  uint64_t bytes_delivered() { return ring().consumer().bytes.get(); }
  // Error kInvalidArgument: restore() would refuse the state.
  void check_state(const std::string& state) { engine_->check(LoaderState::from_json(state)); }
  void restore(const std::string& state);
  void set_length(uint64_t length, uint64_t version);
  bool closed() const { return ring().closed(); }
  void close(double grace);
  // Keep the PythonLoader until then: LoaderWorkers::ended().
  bool ended() const { return workers_->ended(); }
  // Releases results that were not taken. After close(), when Python's threads have ended, too.
  void drain();
  // Waits until no worker runs a ticket that was taken back. Needed before the dataset is changed.
  void settle();

  // The consumer makes the batches itself: of a Python data set; of a Dataset.
  void set_inline(const LoaderWorkers::Source& source);
  void start_plan_inline() { consumer_->work_in_line(engine_->make_worker(true)); }
  LoaderWorkers& workers() { return *workers_; }
  void run_stream_reader() { engine_->run_stream_reader(); }
  int ring_fd() const { return ring().fd(); }
  int arena_fd() const { return engine_->arena().region()->fd(); }
  // Ends the Loader; check_open() raises the exception.
  void set_fatal(nanobind::object exception);

  LoaderStatistics& statistics() { return *statistics_; }
  ByteBudget& budget() { return engine_->budget(); }
  uint32_t ready() { return scheduler().depth(); }  // batches that next() would not wait for

 private:
  const Plan& plan() const { return engine_->plan(); }
  TicketRing& ring() const { return engine_->ring(); }
  Scheduler& scheduler() { return engine_->scheduler(); }
  bool take() override;
  void hand_out(const PlanOutput::Item& item) override;
  void leave_round() override;
  void wait() override;
  void attend() override { breaks_.attend(); }
  [[noreturn]] void raise(Task& task, const Ticket& ticket) override {
    failures_->raise(task, ticket);
  }
  [[noreturn]] void raise(LoaderFailure failure) override { failures_->raise(failure); }
  // Locks the position. An error in a forked child, where a thread that does not exist any more may
  // hold the lock for ever.
  ConsumerLock consume() {
    check_ours();
    return ConsumerLock(consuming_);
  }
  void check_ours();

  SampleSettings settings_;
  pid_t owner_;                                   // a forked child's copy touches nothing
  std::shared_ptr<std::atomic<uint64_t>> count_;  // BuiltPlan::count
  std::unique_ptr<TaskValues> values_;
  std::unique_ptr<PlanEngine> engine_;
  ListedTickets* listed_ = nullptr;  // null: no sampler lists the indices
  std::unique_ptr<Consumer> consumer_;
  // One of both makes the batches' objects.
  std::unique_ptr<PlanObjects> objects_;
  std::optional<PythonBatches> batches_;
  std::optional<FailureRaiser> failures_;
  std::optional<LoaderStatistics> statistics_;
  std::optional<LoaderWorkers> workers_;
  nanobind::object batch_;  // handed out
  std::timed_mutex consuming_;
  GilBreaks breaks_;
  nanobind::object fatal_;
};

}  // namespace penstock::python
