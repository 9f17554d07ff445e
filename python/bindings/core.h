#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "consumer_lock.h"
#include "gil_handover.h"
#include "listed_tickets.h"
#include "penstock/observe/snapshot.h"
#include "penstock/pipeline/engine/consumer.h"
#include "penstock/pipeline/engine/loader_state.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/pipeline/engine/worker_pool.h"
#include "plan_objects.h"
#include "python_worker.h"
#include "task_values.h"

namespace penstock::python {

// The result of next() after the last batch: a value that user code cannot make.
PyObject* end_marker();

// Python's side of a Loader's engine: takes batches with the GIL, runs Python's workers, and raises
// exceptions. Behind penstock.Loader. Plans of Datasets have ChainWorkers, whose batches are
// elements; plans of Python's data sets, samplers and generators have PythonWorkers, whose batches
// are Python objects or rows of a Sample's structure.
//
// Threads: next() and calls that move the position hold `consuming_` (taken without the GIL).
// close() may be called from any thread at any time, also during next().
class Core : private Consumer::Policy {
 public:
  explicit Core(nanobind::dict settings);
  ~Core() override;

  uint64_t begin_iteration() { return consumer_->begin_iteration(); }
  bool is_current(uint64_t serial) const { return consumer_->is_current(serial); }
  // The next batch; END: the epoch or the iteration has ended. Error kInvalidArgument: the
  // iteration was overtaken.
  nanobind::object next(uint64_t serial);
  // Whether a batch's exception ended the last iteration. Then the position is that batch.
  bool failed() const { return consumer_->failed(); }
  // Whether the last batch of the pass with `epoch` in it was taken.
  bool gave_all(uint64_t epoch) const { return engine_->gave_all(epoch); }
  // The place of the replacement of a thread that hangs; the place of a thread that ended.
  uint32_t take_place() { return places_.take(); }
  void give_back_place(uint32_t place) { places_.give_back(place); }
  void count_restart() { ring().consumer().restarts.add(); }
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
  // Whether no native thread is left. An abandoned thread uses the engine's memory when its call
  // returns: keep the Core until then.
  bool ended() const { return natives_ == nullptr || natives_->ended(); }
  // Releases results that were not taken. After close(), when Python's threads have ended, too.
  void drain();
  // Waits until no worker runs a ticket that was taken back. Needed before the dataset is changed.
  void settle();

  // Workers.
  void run_thread(uint32_t worker, nanobind::object source, nanobind::object collate,
                  nanobind::object update);
  void set_inline(nanobind::object source, nanobind::object collate, nanobind::object update);
  // For a Dataset: native threads (0: in line), or one of Python's threads. `functions`: the plan
  // calls functions of the user's, so that threads may wait for the GIL.
  void start_plan(uint32_t threads);
  void run_plan_thread(uint32_t worker, bool functions);
  // For a Dataset with a stream: the stream reader runs on a thread of the engine, or one of
  // Python's.
  void start_stream_reader();
  void run_stream_reader() { engine_->run_stream_reader(); }
  nanobind::tuple supervise();
  void attach(uint32_t worker, int pidfd, int link, int64_t pid);
  void send_update(uint64_t version, int fd, int64_t worker);
  int ring_fd() const { return ring().fd(); }
  int arena_fd() const { return engine_->arena().region()->fd(); }
  void set_fatal(nanobind::object exception);

  Snapshot snapshot(nanobind::dict about);
  nanobind::dict stats();
  ByteBudget& budget() { return engine_->budget(); }
  uint32_t ready() { return scheduler().depth(); }  // batches that next() would not wait for

 private:
  const Plan& plan() const { return engine_->plan(); }
  TicketRing& ring() const { return engine_->ring(); }
  Scheduler& scheduler() { return engine_->scheduler(); }
  Supervisor& supervisor() { return *engine_->supervisor(); }
  // Times by stage: of all workers; of the thread that reads a Dataset's stream.
  std::vector<StageSnapshot> worker_stages() const;
  bool take() override;
  void hand_out(const PlanOutput::Item& item) override;
  void leave_round() override;
  void wait() override;
  // Lets other threads and Python's signal handlers run.
  void attend() override;
  [[noreturn]] void raise(Task& task, const Ticket& ticket) override;
  [[noreturn]] void raise(LoaderFailure failure) override;
  // Locks the position. An error in a forked child, where a thread that does not exist any more may
  // hold the lock for ever.
  ConsumerLock consume() {
    check_ours();
    return ConsumerLock(consuming_);
  }
  void check_ours();
  bool take_rows(BatchEntry& entry);
  [[noreturn]] void raise(nanobind::object exception);
  nanobind::object index_of(const Ticket& ticket, uint32_t row);

  SampleSettings settings_;
  ThreadPlaces places_;
  pid_t owner_;                                   // a forked child's copy touches nothing
  std::shared_ptr<std::atomic<uint64_t>> count_;  // BuiltPlan::count
  std::unique_ptr<PlanObjects> objects_;          // null: PythonWorkers make the batches
  std::unique_ptr<TaskValues> values_;
  std::unique_ptr<PlanEngine> engine_;
  ListedTickets* listed_ = nullptr;
  std::unique_ptr<Consumer> consumer_;
  nanobind::object batch_;               // handed out
  std::unique_ptr<WorkerPool> natives_;  // engine threads that are workers
  std::thread stream_thread_;            // an engine thread that runs the stream reader
  std::timed_mutex consuming_;
  uint64_t attended_ns_ = 0, looked_ns_ = 0;
  uint32_t unlooked_ = 0;  // calls of attend() until the clock is read again
  GilHandover handover_;
  nanobind::object fatal_;
  std::mutex ended_by_mutex_;
  std::exception_ptr ended_by_;  // the error that ended stream_thread_
  // The layout of a PythonWorker's last batch.
  std::vector<std::byte> spec_;
  uint64_t spec_rows_ = 0;
  RowLayout layout_;
  std::vector<std::byte*> columns_;
};

}  // namespace penstock::python
