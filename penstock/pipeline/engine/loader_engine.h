#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/engine/loader_crew.h"
#include "penstock/pipeline/engine/local_outlet.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/engine/plan_output.h"
#include "penstock/pipeline/engine/plan_tickets.h"
#include "penstock/pipeline/feed/feed.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/plan.h"
#include "penstock/pipeline/sources/samples.h"
#include "penstock/pipeline/streams/cursor.h"
#include "penstock/pipeline/streams/section.h"
#include "penstock/workers/supervisor.h"

namespace penstock {

// A C++ Loader's inside: it runs a plan. The board, the memory, the feed, the threads that work for
// it, and, of a plan with a stream, the thread that goes through it. Shared by the Loader, its
// ranges and its threads, so that a thread that is stuck in user code finds everything in place
// when it comes back. Threads: as Loader says.
class LoaderEngine : public std::enable_shared_from_this<LoaderEngine> {
 public:
  // Of a Dataset, which says itself how it is batched, shuffled and sharded: Error kInvalidArgument
  // for those options.
  LoaderEngine(std::shared_ptr<const Plan> plan, const LoaderOptions& options);
  // Of a data set of samples, whose hooks run between epochs.
  LoaderEngine(std::shared_ptr<Samples> samples, const LoaderOptions& options);
  ~LoaderEngine();

  uint64_t begin_epoch();  // returns the iteration's serial
  uint64_t begin_steps();
  std::optional<Example> next();
  // For a range. across: the end of an epoch does not end it. gave_all: set once the last batch of
  // its epoch was taken. There is one place, so one iteration at a time: restoring ends it, and a
  // later one overtakes it: Error kInvalidArgument, as what it would have given is gone.
  std::optional<Example> next_of(uint64_t serial, bool across, bool& gave_all);

  uint64_t steps() const { return plan_->known_length().value_or(UINT64_MAX); }
  LoaderState state() const;
  void restore(const LoaderState& state);
  std::optional<LoaderFailure> failure() const;
  LoaderStats stats() const;
  Snapshot snapshot() const;
  void close();
  bool closed() const { return board_->closed(); }
  // Of batches made ahead, where nobody says otherwise (LoaderOptions::max_bytes).
  static uint64_t usual_bytes();

 private:
  // What the options and the plan come to.
  struct Settings {
    LoaderOptions options;
    Tuner::Limits tuning;
    Cursor::Shares shares;
    std::vector<uint32_t> lanes;  // of the board beside the first: their rings' sizes
    uint32_t longest_queue = 0;   // that the tuner may choose
  };
  static Settings settings_of(const Plan& plan, LoaderOptions options, bool samples);
  LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
               const LoaderOptions& options);
  LoaderEngine(std::shared_ptr<const Plan> plan, std::shared_ptr<Samples> samples,
               const Settings& settings);
  void make_cursor(const Settings& settings);

  uint32_t workers() const { return *options_.workers; }  // threads; 0: the consumer
  std::unique_ptr<Fulfiller> make_worker();
  void enter();
  void enter_epoch(uint64_t epoch);
  void leave_epoch();
  void close_stream();

  std::optional<Example> take_next();
  std::optional<Example> take();
  std::optional<Example> take_item();
  std::optional<Example> take_held();
  Example example_of(const PlanOutput::Item& item) const;

  // For who moves the position, or looks at it. Refuses in a forked child, where the lock may be
  // held for ever: by a thread that was in next() and is not there.
  std::unique_lock<std::mutex> consume() const;
  void check_ours() const;
  void check_open() const;
  void settle();  // nobody is busy any more with what was taken back
  void note(const std::vector<Outcome::Loss>& losses, uint64_t epoch);
  [[noreturn]] void raise(Unit& unit, uint32_t granule);
  [[noreturn]] void raise(LoaderFailure failure);  // and the position stays
  [[noreturn]] void raise_stream_failure();
  // The position was set from outside: the next iteration goes on there.
  void resume_at(const Position& at, std::set<uint64_t> ahead);

  std::string title() const;
  std::vector<StageSnapshot> worker_stages() const;
  std::vector<StageSnapshot> stream_stages() const;

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<Samples> samples_;  // nullptr: a Dataset
  const LoaderOptions options_;
  std::unique_ptr<PlanTickets> tickets_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Allocator> arena_;
  std::unique_ptr<Feed> feed_;
  PlanOutput output_;
  LocalInlet inlet_;
  std::unique_ptr<Sections> sections_;  // of a plan that has some, where there are workers
  std::unique_ptr<Cursor> cursor_;      // of a plan with a stream
  std::thread reading_;                 // the cursor's
  std::future<void> read_;              // it has ended, but for letting go of the engine
  LocalRows rows_;
  std::unique_ptr<Supervisor> supervisor_;  // where there is a timeout
  std::unique_ptr<Fulfiller> inline_;
  LoaderCrew crew_;

  mutable std::mutex consumer_;      // of the feed, and of what moves the position
  std::mutex closing_;               // of who closes, when no worker runs any more
  std::optional<uint64_t> running_;  // the epoch that an iteration is in
  std::optional<uint64_t> hooked_;   // the epoch whose begin hook ran, but not its end
  uint64_t version_ = 0;             // of the data set's length
  uint64_t serial_ = 0;   // of the current iteration; nobody's, if the last one was ended
  uint64_t latest_ = 0;   // of the last iteration that was begun
  uint32_t empty_ = 0;    // epochs in a row that gave nothing
  bool resumed_ = false;  // the position was set by restore() or steps()

  mutable std::mutex notes_;
  std::vector<LostItem> losses_;
  std::optional<LoaderFailure> failure_;
};

}  // namespace penstock
