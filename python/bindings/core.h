#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "consumer_lock.h"
#include "listed_tickets.h"
#include "lock_turn.h"
#include "penstock/observe/snapshot.h"
#include "penstock/pipeline/engine/loader_state.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/pipeline/engine/worker_pool.h"
#include "penstock/pipeline/scheduler/order.h"
#include "penstock/pipeline/scheduler/tickets.h"
#include "plan_objects.h"
#include "python_worker.h"
#include "task_values.h"

namespace penstock::python {

// The result of next() after the last batch: a value that user code cannot make.
PyObject* end_marker();

// Python's side of a Loader's engine: takes batches with the GIL, runs Python's workers, and raises
// exceptions. Behind penstock.Loader. A plan has a PlanEngine; other sources (Python's data sets,
// samplers and generators) have a TicketEngine and PythonWorkers.
//
// Threads: next() and calls that move the position hold `consumer_` (taken without the GIL).
// close() may be called from any thread at any time, also during next().
class Core {
 public:
  explicit Core(nanobind::dict settings);
  ~Core();

  // There is one position, so one iteration at a time. Each has a serial:
  //   - current: after begin_iteration().
  //   - ended: after end_iteration(), because the user set the position.
  //   - overtaken: after another begin_iteration().
  uint64_t begin_iteration() {
    failed_ = false;
    return latest_ = ++serial_;
  }
  void end_iteration() { ++serial_; }
  bool is_current(uint64_t serial) const { return serial == serial_; }
  // The next batch; END: the epoch or the iteration has ended. Error kInvalidArgument: the
  // iteration was overtaken.
  nanobind::object next(uint64_t epoch, uint64_t serial);
  // Whether a batch's exception ended the last iteration. Then the position is that batch.
  bool failed() const { return failed_; }
  // Whether the last batch of the pass with `epoch` in it was taken.
  bool gave_all(uint64_t epoch) const;
  void count_restart() { ring().consumer().restarts.add(); }
  void check_open();
  void begin_epoch();
  void seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead);
  nanobind::tuple position();
  std::vector<uint64_t> ahead();
  uint64_t steps(uint64_t base);
  bool holds();  // whether elements of a taken ticket are left
  // For a Dataset: the first epoch of the next pass. Goes there if the last pass is unfinished.
  // `resumed`: the position was set, so its pass continues.
  uint64_t begin_pass(bool resumed);
  std::string plan_state();
  LoaderState plan_place() const;
  uint64_t rounds() const;
  uint64_t bytes_delivered() { return ring().consumer().bytes.get(); }
  // Error kInvalidArgument: the state is invalid for restore_plan.
  void check_plan_state(const std::string& state);
  void restore_plan(const std::string& state);
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
  // For a Dataset: native threads (0: in line), or one of Python's threads.
  void start_plan(uint32_t threads);
  void run_plan_thread(uint32_t worker);
  // For a Dataset with a stream: the stream reader runs on a thread of the engine, or one of
  // Python's.
  void start_stream_reader();
  void run_stream_reader() { plan_->run_stream_reader(); }
  nanobind::tuple supervise();
  void attach(uint32_t worker, int pidfd, int link, int64_t pid);
  void send_update(uint64_t version, int fd, int64_t worker);
  int ring_fd() const { return ring().fd(); }
  int arena_fd() const { return engine_->arena().region()->fd(); }
  void set_fatal(nanobind::object exception);

  Snapshot snapshot(nanobind::dict about);
  nanobind::dict stats();

 private:
  void make_plan_engine(const nanobind::dict& settings);
  void make_ticket_engine(const nanobind::dict& settings);
  std::unique_ptr<TaskValues> values_of(TicketEngine& engine);
  TicketRing& ring() const { return engine_->ring(); }
  Scheduler& scheduler() { return engine_->scheduler(); }
  Supervisor& supervisor() { return *engine_->supervisor(); }
  // Times by stage: of all workers; of the thread that reads a Dataset's stream.
  std::vector<StageSnapshot> worker_stages() const;
  std::vector<StageSnapshot> stream_stages() const;
  // Called repeatedly while the consumer works in line: lets other threads and Python's signal
  // handlers run. False: a signal handler raised.
  bool attend();
  // Locks the position. An error in a forked child, where a thread that does not exist any more may
  // hold the lock for ever.
  ConsumerLock consume() {
    check_ours();
    return ConsumerLock(consumer_);
  }
  void check_ours();
  std::optional<uint64_t> go_on(uint64_t epoch);
  nanobind::object handed_out(PlanEngine::Taken taken);
  nanobind::object take();
  nanobind::object take_rows(BatchEntry& entry);
  [[noreturn]] void raise_failure(Task& task, const Ticket& ticket);
  [[noreturn]] void raise_plan_failure(LoaderFailure failure);
  [[noreturn]] void raise(nanobind::object exception);
  nanobind::object index_of(const Ticket& ticket, uint32_t row);

  SampleSettings settings_;
  pid_t owner_;          // a forked child's copy touches nothing
  uint64_t serial_ = 0;  // of the current iteration; unused, if the last one was ended
  uint64_t latest_ = 0;  // of the last iteration that was begun
  bool failed_ = false;  // see failed()
  Order order_;
  std::unique_ptr<PlanObjects> objects_;  // for a plan
  std::unique_ptr<TaskValues> values_;
  std::unique_ptr<TicketEngine> engine_;
  PlanEngine* plan_ = nullptr;  // engine_, if it runs a plan
  ListedTickets* listed_ = nullptr;
  IndexedTickets* indexed_ = nullptr;
  std::unique_ptr<TicketRunner> inline_;
  std::unique_ptr<WorkerPool> natives_;  // engine threads that are workers
  std::thread stream_thread_;            // an engine thread that runs the stream reader
  std::timed_mutex consumer_;
  uint64_t attended_ns_ = 0, looked_ns_ = 0;
  uint32_t unlooked_ = 0;  // calls of attend() until the clock is read again
  LockTurn turn_;
  nanobind::object fatal_;
  std::mutex ended_by_mutex_;
  std::exception_ptr ended_by_;  // the error that ended stream_thread_
  // The layout of the last batch.
  std::vector<std::byte> spec_;
  uint64_t spec_rows_ = 0;
  RowLayout layout_;
  std::vector<std::byte*> columns_;
};

}  // namespace penstock::python
