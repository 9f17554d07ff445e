#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "penstock/pipeline/engine/consumer.h"
#include "penstock/pipeline/engine/loader_options.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/pipeline/engine/samples.h"
#include "penstock/pipeline/engine/worker_pool.h"

namespace penstock {

// The engine of a C++ Loader: a PlanEngine, its worker threads, the thread that reads the plan's
// stream, and the hooks of a data set of samples. The Loader, its ranges and its threads share it,
// so a thread that returns late from user code still finds all objects alive. Threads: as for
// Loader.
class LoaderEngine : public std::enable_shared_from_this<LoaderEngine>, private Consumer::Policy {
 public:
  // For a Dataset. Its nodes do batching, shuffling and sharding. Error kInvalidArgument: an option
  // for these is set.
  LoaderEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options);
  // For a data set of samples, whose hooks run between epochs.
  LoaderEngine(std::shared_ptr<Samples> samples, const LoaderOptions& options);

  uint64_t begin_epoch();  // returns the iteration's serial
  uint64_t begin_steps();
  std::optional<Example> next();
  // The next batch of a range. `across`: the range continues across epochs. `gave_all`: set after
  // the last batch of its epoch. Error kInvalidArgument: a newer iteration has begun.
  std::optional<Example> next_of(uint64_t serial, bool across, bool& gave_all);

  uint64_t steps() const { return engine_.plan().known_length().value_or(UINT64_MAX); }
  LoaderState state() const;
  void restore(const LoaderState& state);
  std::optional<LoaderFailure> failure() const;
  LoaderStats stats() const;
  Snapshot snapshot() const;
  void close();
  bool closed() const { return engine_.ring().closed(); }
  ByteBudget& budget() { return engine_.budget(); }
  // The default of LoaderOptions::max_bytes.
  static uint64_t usual_bytes();

 private:
  LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
               const LoaderOptions& options);
  LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
               const EngineSettings& settings);

  // Number of threads; 0: the consumer makes batches.
  uint32_t workers() const { return engine_.settings().workers; }
  void enter();
  void enter_epoch(uint64_t epoch);
  void end_epoch();  // calls the hook of the epoch that began
  void close_stream();
  std::optional<Example> take_next();

  // Locks the position. Error in a forked child, where the lock may be held forever by a thread
  // that does not exist there.
  std::unique_lock<std::mutex> consume() const;
  void check_ours() const;
  void settle();  // waits until no worker runs a withdrawn ticket

  void check_open() override;
  bool take() override;
  void hand_out(const PlanOutput::Item& item) override;
  void leave_round() override { engine_.leave_round(); }
  void wait() override { engine_.scheduler().wait(-1); }
  [[noreturn]] void raise(Task& task, const Ticket& ticket) override;
  [[noreturn]] void raise(LoaderFailure failure) override;

  std::string title() const;

  const std::shared_ptr<Samples> samples_;  // nullptr: a Dataset
  PlanEngine engine_;
  std::thread reading_;     // runs the stream reader
  std::future<void> read_;  // ready when reading_ is done, except for releasing the engine
  WorkerPool pool_;

  mutable std::mutex consuming_;  // guards all that only the consumer uses
  std::mutex closing_;            // held while closing, after the workers have ended
  Consumer consumer_;
  std::optional<Example> batch_;    // handed out
  std::optional<uint64_t> hooked_;  // the epoch whose begin hook ran, but not its end hook
  uint64_t version_ = 0;            // of the data set's length
  bool resumed_ = false;            // the position was set by restore() or steps()

  mutable std::mutex failing_;  // guards failure_
  std::optional<LoaderFailure> failure_;
};

}  // namespace penstock
