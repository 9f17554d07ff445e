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
#include "penstock/pipeline/engine/loader_crew.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/pipeline/feed/order.h"
#include "penstock/pipeline/feed/tickets.h"
#include "penstock/pipeline/loader_state.h"
#include "plan_results.h"
#include "python_worker.h"
#include "unit_values.h"

namespace penstock::python {

// What next() returns after the last batch: no value that user code could have made.
PyObject* end_marker();

template <class T>
T setting(const nanobind::dict& settings, const char* name) {
  return nanobind::cast<T>(settings[name]);
}

// Python's side of a Loader's engine: who takes batches with the GIL, Python's workers, and what
// is raised. Python's Loader is its face. What a plan gives is its PlanEngine's to say; other
// sources (Python's data sets, samplers and generators) have a FeedEngine and PythonWorkers.
//
// Threads: next() and what moves the position hold `consumer_` (taken without the GIL); close() may
// come from any thread at any time, also while another is in next().
class Core {
 public:
  explicit Core(nanobind::dict settings);
  ~Core();

  // There is one place, so one iteration at a time. Each has a serial:
  //
  //   begin_iteration() ──> current ──end_iteration()──> ended: the place was set from outside
  //                            └───begin_iteration()──> overtaken, and so is one that had ended
  uint64_t begin_iteration() {
    failed_ = false;
    return latest_ = ++serial_;
  }
  void end_iteration() { ++serial_; }
  bool is_current(uint64_t serial) const { return serial == serial_; }
  // The next batch; END: the epoch is over, or the iteration was ended. Error kInvalidArgument: it
  // was overtaken, and what it would have given is gone.
  nanobind::object next(uint64_t epoch, uint64_t serial);
  // Whether the last iteration ended with what a batch raised: the position is that batch.
  bool failed() const { return failed_; }
  // Whether the last batch of the pass with `epoch` in it was taken.
  bool gave_all(uint64_t epoch) const;
  void count_restart() { board().consumer().restarts.add(); }
  void check_open();
  void begin_epoch();
  void seek(uint64_t epoch, uint64_t base, uint64_t step, std::vector<uint64_t> ahead);
  nanobind::tuple position();
  std::vector<uint64_t> ahead();
  uint64_t steps(uint64_t base);
  bool holds();  // elements of a ticket that was taken
  // Of a Dataset: the epoch with which the next pass begins; goes there if the last one was left
  // in the middle. `resumed`: the position was set, so the pass goes on.
  uint64_t begin_pass(bool resumed);
  std::string plan_state();
  LoaderState plan_place() const;
  uint64_t rounds() const;
  uint64_t bytes_delivered() { return board().consumer().bytes.get(); }
  // Error kInvalidArgument: restore_plan would refuse it.
  void check_plan_state(const std::string& state);
  void restore_plan(const std::string& state);
  void set_length(uint64_t length, uint64_t version);
  bool closed() const { return board().closed(); }
  void close(double grace);
  // Whether no native thread is left. One that is stuck past the timeout goes on with the engine's
  // memory when it comes back: keep the Core until then.
  bool ended() const { return natives_ == nullptr || natives_->ended(); }
  // Lets go of what was made and not taken. After close(), when Python's threads have ended as
  // well.
  void drain();
  // Waits until no worker is busy with tickets that were taken back: before the dataset is changed.
  void settle();

  // Workers.
  void run_thread(uint32_t worker, nanobind::object source, nanobind::object collate,
                  nanobind::object update);
  void set_inline(nanobind::object source, nanobind::object collate, nanobind::object update);
  // A Dataset's: native threads (0: in line), or one of Python's threads.
  void start_plan(uint32_t threads);
  void run_plan_thread(uint32_t worker);
  // Of a Dataset with a stream: who goes through it, an engine's thread or one of Python's.
  void start_cursor();
  void run_cursor() { plan_->run_cursor(); }
  nanobind::tuple supervise();
  void attach(uint32_t worker, int pidfd, int link, int64_t pid);
  void send_update(uint64_t version, int fd, int64_t worker);
  int board_fd() const { return board().fd(); }
  int arena_fd() const { return engine_->arena().region()->fd(); }
  void set_fatal(nanobind::object exception);

  Snapshot snapshot(nanobind::dict about);
  nanobind::dict stats();

 private:
  void make_plan_engine(const nanobind::dict& settings);
  void make_feed_engine(const nanobind::dict& settings);
  std::unique_ptr<UnitValues> values_of(FeedEngine& engine);
  Board& board() const { return engine_->board(); }
  Feed& feed() { return engine_->feed(); }
  Supervisor& supervisor() { return *engine_->supervisor(); }
  // By stage: of all workers; of the thread that goes through a Dataset's stream.
  std::vector<StageSnapshot> worker_stages() const;
  std::vector<StageSnapshot> stream_stages() const;
  // While somebody works in line, again and again: lets other threads run, and Python's signal
  // handlers. False: one of them raised.
  bool attend();
  // For what moves the position. Refuses in a forked child, where the lock may be held for ever: by
  // a thread that was in next() and is not there.
  ConsumerLock consume() {
    check_ours();
    return ConsumerLock(consumer_);
  }
  void check_ours();
  std::optional<uint64_t> go_on(uint64_t epoch);
  nanobind::object handed_out(PlanEngine::Taken taken);
  nanobind::object take();
  nanobind::object take_rows(Post& post);
  void note_losses(PyObject* list, uint64_t epoch);
  [[noreturn]] void raise_failure(Unit& unit, const Ticket& ticket);
  [[noreturn]] void raise_plan_failure(LoaderFailure failure);
  [[noreturn]] void raise(nanobind::object exception);
  nanobind::object index_of(const Ticket& ticket, uint32_t row);

  PlanSettings settings_;
  pid_t owner_;          // a forked child's copy touches nothing
  uint64_t serial_ = 0;  // of the current iteration; nobody's, if the last one was ended
  uint64_t latest_ = 0;  // of the last iteration that was begun
  bool failed_ = false;  // see failed()
  Order order_;
  std::unique_ptr<PlanObjects> objects_;  // of a plan
  std::unique_ptr<UnitValues> values_;
  std::unique_ptr<FeedEngine> engine_;
  PlanEngine* plan_ = nullptr;  // the same, of a plan
  ListedTickets* listed_ = nullptr;
  IndexedTickets* indexed_ = nullptr;
  std::unique_ptr<Fulfiller> inline_;
  std::unique_ptr<LoaderCrew> natives_;  // engine threads that are workers
  std::thread cursor_;                   // an engine thread that goes through a stream
  std::timed_mutex consumer_;
  uint64_t attended_ns_ = 0, looked_ns_ = 0;
  uint32_t unlooked_ = 0;  // calls of attend() before the next look at the clock
  LockTurn turn_;
  nanobind::object fatal_;
  std::mutex ended_by_mutex_;
  std::exception_ptr ended_by_;  // what ended the cursor's thread
  // The layout of the last batch.
  std::vector<std::byte> spec_;
  uint64_t spec_rows_ = 0;
  RowLayout layout_;
  std::vector<std::byte*> columns_;
};

// `for batch in loader`: one epoch.
class EpochIterator {
 public:
  EpochIterator(nanobind::object core, uint64_t epoch, nanobind::object finished)
      : core_(std::move(core)),
        epoch_(epoch),
        serial_(engine().begin_iteration()),
        finished_(std::move(finished)) {}
  nanobind::object next();
  // For who asks the core himself.
  uint64_t epoch() const { return epoch_; }
  uint64_t serial() const { return serial_; }
  // For Python's garbage collector.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  Core& engine() { return nanobind::cast<Core&>(core_); }

  nanobind::object core_;
  uint64_t epoch_, serial_;
  nanobind::object finished_;  // called with the epoch when it is over
  bool gave_all_ = false;
  bool over_ = false;
};

void bind_core(nanobind::module_& m);
// The worker process's side.
void bind_worker(nanobind::module_& m);

}  // namespace penstock::python
