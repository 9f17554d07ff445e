#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "penstock/pipeline/engine/loader_crew.h"
#include "penstock/pipeline/engine/plan_engine.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/sources/samples.h"

namespace penstock {

// A C++ Loader's inside: a plan's engine, the threads that work for it, and, of a plan with a
// stream, the thread that goes through it; and the hooks of a data set of samples. Shared by the
// Loader, its ranges and its threads, so that a thread that is stuck in user code finds everything
// in place when it comes back. Threads: as Loader says.
class LoaderEngine : public std::enable_shared_from_this<LoaderEngine> {
 public:
  // Of a Dataset, which says itself how it is batched, shuffled and sharded: Error kInvalidArgument
  // for those options.
  LoaderEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options);
  // Of a data set of samples, whose hooks run between epochs.
  LoaderEngine(std::shared_ptr<Samples> samples, const LoaderOptions& options);

  uint64_t begin_epoch();  // returns the iteration's serial
  uint64_t begin_steps();
  std::optional<Example> next();
  // For a range. across: the end of an epoch does not end it. gave_all: set once the last batch of
  // its epoch was taken. There is one place, so one iteration at a time: restoring ends it, and a
  // later one overtakes it: Error kInvalidArgument, as what it would have given is gone.
  std::optional<Example> next_of(uint64_t serial, bool across, bool& gave_all);

  uint64_t steps() const { return engine_.plan().known_length().value_or(UINT64_MAX); }
  LoaderState state() const;
  void restore(const LoaderState& state);
  std::optional<LoaderFailure> failure() const;
  LoaderStats stats() const;
  Snapshot snapshot() const;
  void close();
  bool closed() const { return engine_.board().closed(); }
  // Of batches made ahead, where nobody says otherwise (LoaderOptions::max_bytes).
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

  // For who moves the position, or looks at it. Refuses in a forked child, where the lock may be
  // held for ever: by a thread that was in next() and is not there.
  std::unique_lock<std::mutex> consume() const;
  void check_ours() const;
  void check_open() const;
  void settle();  // nobody is busy any more with what was taken back
  [[noreturn]] void raise(Unit& unit, uint32_t granule);
  [[noreturn]] void raise(LoaderFailure failure);  // and the position stays

  std::string title() const;

  const std::shared_ptr<Samples> samples_;  // nullptr: a Dataset
  PlanEngine engine_;
  std::thread reading_;     // the cursor's
  std::future<void> read_;  // it has ended, but for letting go of the engine
  std::unique_ptr<Fulfiller> inline_;
  LoaderCrew crew_;

  mutable std::mutex consumer_;      // of the feed, and of what moves the position
  std::mutex closing_;               // of who closes, when no worker runs any more
  std::optional<uint64_t> running_;  // the epoch that an iteration is in
  std::optional<uint64_t> hooked_;   // the epoch whose begin hook ran, but not its end
  uint64_t version_ = 0;             // of the data set's length
  uint64_t serial_ = 0;   // of the current iteration; nobody's, if the last one was ended
  uint64_t latest_ = 0;   // of the last iteration that was begun
  bool resumed_ = false;  // the position was set by restore() or steps()

  mutable std::mutex failing_;  // of failure_
  std::optional<LoaderFailure> failure_;
};

}  // namespace penstock
