#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "penstock/pipeline/engine/loader_options.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/pipeline/engine/samples.h"
#include "penstock/pipeline/engine/worker_pool.h"

namespace penstock {

// The engine of a C++ Loader: a PlanEngine, its worker threads, the thread that reads the plan's
// stream, and the hooks of a data set of samples. Shared by the Loader, its ranges and its threads,
// so a thread that returns late from user code still finds everything in place. Threads: as Loader
// says.
class LoaderEngine : public std::enable_shared_from_this<LoaderEngine> {
 public:
  // For a Dataset, which is batched, shuffled and sharded by its own nodes: Error kInvalidArgument
  // for those options.
  LoaderEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options);
  // For a data set of samples, whose hooks run between epochs.
  LoaderEngine(std::shared_ptr<Samples> samples, const LoaderOptions& options);

  uint64_t begin_epoch();  // returns the iteration's serial
  uint64_t begin_steps();
  std::optional<Example> next();
  // The next batch of a range. `across`: the range goes on across epochs. `gave_all`: set after the
  // last batch of its epoch. There is one place, so one iteration at a time: restore(), or a newer
  // iteration, ends this one: Error kInvalidArgument.
  std::optional<Example> next_of(uint64_t serial, bool across, bool& gave_all);

  uint64_t steps() const { return engine_.plan().known_length().value_or(UINT64_MAX); }
  LoaderState state() const;
  void restore(const LoaderState& state);
  std::optional<LoaderFailure> failure() const;
  LoaderStats stats() const;
  Snapshot snapshot() const;
  void close();
  bool closed() const { return engine_.ring().closed(); }
  // The default of LoaderOptions::max_bytes.
  static uint64_t usual_bytes();

 private:
  LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
               const LoaderOptions& options);
  LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
               const EngineSettings& settings);

  uint32_t workers() const { return engine_.settings().workers; }  // threads; 0: the consumer
  void enter();
  void enter_epoch(uint64_t epoch);
  void leave_epoch();
  void close_stream();

  std::optional<Example> take_next();
  std::optional<Example> take();
  std::optional<Example> take_item();
  std::optional<Example> handed_out(PlanEngine::Taken taken);
  Example example_of(const PlanOutput::Item& item) const;

  // Locks the position. An error in a forked child, where a thread that does not exist any more may
  // hold the lock for ever.
  std::unique_lock<std::mutex> consume() const;
  void check_ours() const;
  void check_open() const;
  void settle();  // waits until no worker runs a ticket that was taken back
  [[noreturn]] void raise(Task& task, uint32_t granule);
  [[noreturn]] void raise(LoaderFailure failure);  // the position stays

  std::string title() const;

  const std::shared_ptr<Samples> samples_;  // nullptr: a Dataset
  PlanEngine engine_;
  std::thread reading_;     // runs the stream reader
  std::future<void> read_;  // ready when reading_ is done, except for releasing the engine
  std::unique_ptr<TicketRunner> inline_;
  WorkerPool pool_;

  mutable std::mutex consumer_;      // of the scheduler and the position
  std::mutex closing_;               // held to close, when no worker runs any more
  std::optional<uint64_t> running_;  // the epoch that an iteration is in
  std::optional<uint64_t> hooked_;   // the epoch whose begin hook ran, but not its end
  uint64_t version_ = 0;             // of the data set's length
  uint64_t serial_ = 0;              // of the current iteration; unused, if the last one was ended
  uint64_t latest_ = 0;              // of the last iteration that was begun
  bool resumed_ = false;             // the position was set by restore() or steps()

  mutable std::mutex failing_;  // of failure_
  std::optional<LoaderFailure> failure_;
};

}  // namespace penstock
