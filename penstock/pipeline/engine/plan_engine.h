#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/pipeline/engine/chain_worker.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/engine/plan_output.h"
#include "penstock/pipeline/engine/plan_tickets.h"
#include "penstock/pipeline/engine/stream_reader.h"
#include "penstock/pipeline/engine/ticket_engine.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/streams/parallel_map.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

// A worker for all lanes of the ring: for the plan and all of its parallel maps. `outlet` is called
// once for each of them.
std::unique_ptr<TicketRunner> worker_of_plan(
    const std::shared_ptr<const Plan>& plan, const ChainWorker::Options& options, TicketRing& ring,
    const std::function<std::unique_ptr<ChainWorker::Outlet>()>& outlet);

// Runs a plan, for the Loaders of C++ and Python: schedules its tickets, reads its stream, runs its
// parallel maps, turns results into items, and keeps the consumer's place.
//
// The consumer's loop is Consumer::next(). Failures of stages are returned (Taken::failure), not
// thrown; the caller raises them.
//
// Threads: one consumer at a time. Any thread may call make_worker(), run_stream_reader(),
// worker_stages(), stream_stages() and close_stream().
class PlanEngine : public TicketEngine {
 public:
  // Delivers results to the consumer. Implemented for worker threads and for worker processes.
  class Transport {
   public:
    virtual ~Transport() = default;
    // For a worker in this process; used by one thread.
    virtual std::unique_ptr<ChainWorker::Outlet> outlet() = 0;
    virtual ParallelMapResults& results() = 0;
    // Takes the losses of a finished task (kRows).
    virtual std::vector<Loss> losses_in(Task& task) = 0;
    // Releases the result of a task.
    virtual void discard(Task& task) = 0;
    // StreamReader::Options::attend.
    virtual void attend() {}
  };
  using MakeTransport = std::function<std::unique_ptr<Transport>(TicketEngine&)>;

  // `describer`: see PlanTickets::set_describer. Error kOutOfMemory.
  PlanEngine(std::shared_ptr<const Plan> plan, const EngineSettings& settings,
             const MakeTransport& transport, const MakeTickets& describer = nullptr);
  // REQUIRED: workers and stream reader have ended.
  ~PlanEngine() override;

  const Plan& plan() const { return *plan_; }

  std::unique_ptr<TicketRunner> make_worker(bool in_line) const;
  bool has_stream_reader() const { return reader_ != nullptr; }
  // Reads the stream until close_stream().
  void run_stream_reader() { reader_->run(); }
  std::vector<StageSnapshot> worker_stages() const;
  std::vector<StageSnapshot> stream_stages() const;
  // Bytes of elements that the stream reader copied for tickets so far. Any thread.
  uint64_t stream_bytes_copied() const {
    return reader_ == nullptr ? 0 : reader_->memory().copied();
  }

  // The next item; or a failure to raise, at the position; or neither: call again.
  struct Taken {
    std::optional<PlanOutput::Item> item;
    std::optional<LoaderFailure> failure;
  };
  // Takes the next element of a ticket that was taken before.
  bool has_held() const { return output_.can_take(); }
  Taken take_held();
  // Takes the scheduler's current ticket. REQUIRED: none of its tasks failed.
  Taken take();
  // Whether the current ticket has to be made again instead (PlanOutput::apart).
  bool remake_if_mismatched() { return output_.remake_if_mismatched(ring()); }
  // The failure of a task of a worker in this process. REQUIRED: ResultKind::kError.
  static LoaderFailure failure_of(Task& task, const Ticket& ticket);
  // After Scheduler::Poll::kFailed.
  LoaderFailure stream_failure();

  // A user's pass may have several rounds, each an epoch of the scheduler. Returns the round to
  // poll in the pass that contains `epoch`; nothing: the pass ended.
  std::optional<uint64_t> round(uint64_t epoch) const;
  // Call it when the scheduler has left a round: counts the losses after its last batch, and
  // completes caches. May block.
  void leave_round();
  // The whole pass was delivered.
  bool gave_all(uint64_t epoch) const;
  bool holds() const { return output_.has_held(); }
  // Whether the last pass was left before its end.
  bool amid() const;
  // The first epoch of the next pass. Seeks there if the last pass was left before its end, or has
  // `failed`. An endless pass begins with the next round of which nothing was delivered. `resumed`:
  // the position was set, so that pass continues.
  uint64_t begin_pass(bool resumed, bool failed);

  // The source's length changed. `version`: Scheduler::set_version.
  void length_changed(uint64_t version) {
    tickets().length_changed();
    scheduler().set_version(version);
  }

  // The position of the next item.
  Position position() const { return output_.position(); }
  LoaderState state() const { return output_.state(); }
  // Error kInvalidArgument: restore() would refuse the state.
  void check(const LoaderState& state) const { (void)output_.place_of(state); }
  // Error kInvalidArgument: `state` is of another plan or seed; nothing has changed.
  void restore(const LoaderState& state);

  // Ends run_stream_reader().
  void close_stream();
  // Call it when no more items are taken: releases the held ones. state() stays the same.
  void close_output() { output_.close(); }
  // Releases everything that stream and tickets hold. REQUIRED: workers and stream reader have
  // ended.
  void release();

 private:
  static EngineSettings settings_of(const Plan& plan, EngineSettings settings);
  static Needs needs_of(const Plan& plan, const EngineSettings& settings);
  void make_stream_reader();
  PlanTickets& tickets() { return static_cast<PlanTickets&>(TicketEngine::tickets()); }
  uint64_t pass_of(uint64_t epoch) const;
  bool within_round() const;

  const std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Transport> transport_;
  PlanOutput output_;
  uint64_t delivered_epoch_ = 0;          // of the last batch, or of the position that was set
  std::unique_ptr<ParallelMaps> maps_;    // null without parallel maps or without workers
  std::unique_ptr<StreamReader> reader_;  // null without a stream
};

// Transport for workers in the consumer's own process: results are Outcomes.
class LocalTransport : public PlanEngine::Transport {
 public:
  std::unique_ptr<ChainWorker::Outlet> outlet() override;
  ParallelMapResults& results() override { return results_; }
  std::vector<Loss> losses_in(Task& task) override;
  void discard(Task& task) override { (void)take_outcome(task); }

 private:
  class Results : public ParallelMapResults {
   public:
    ParallelMapResult take(Task& task) override;
  };

  Results results_;
};

}  // namespace penstock
