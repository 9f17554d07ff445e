#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "penstock/pipeline/engine/chain_worker.h"
#include "penstock/pipeline/engine/feed_engine.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/engine/plan_output.h"
#include "penstock/pipeline/engine/plan_tickets.h"
#include "penstock/pipeline/streams/cursor.h"
#include "penstock/pipeline/streams/section.h"

namespace penstock {

// Runs a plan, for C++'s Loader and Python's: the feed of its tickets; of a plan with a stream the
// cursor, and the sections in front of it; what its tickets are to the consumer, and places.
//
//   round() ──> the feed is polled ──kBatch──> take() ──> take_held() until there is nothing
//     ^                            ──kEpochEnd─> leave_round() ──┐
//     └──────────────────────────────────────────────────────────┘
//
// It raises nothing that a stage failed with: that is handed over, for its owner to raise.
//
// Threads: the consumer's, one at a time; but make_worker(), run_cursor(), worker_stages(),
// stream_stages() and close_stream() are for any thread.
class PlanEngine : public FeedEngine {
 public:
  // How results reach the consumer: what differs between workers that are threads and processes.
  class Transport {
   public:
    virtual ~Transport() = default;
    // Of workers in this process, each of one thread.
    virtual std::unique_ptr<ChainWorker::Outlet> outlet() = 0;
    virtual SectionInlet& inlet() = 0;
    // What a done unit (kRows) carries; it is the unit's no longer.
    virtual std::vector<Outcome::Loss> losses_in(Unit& unit) = 0;
    // Lets go of what any unit carries.
    virtual void discard(Unit& unit) = 0;
    // Cursor::Options::attend.
    virtual void attend() {}
  };
  using MakeTransport = std::function<std::unique_ptr<Transport>(FeedEngine&)>;

  // `lists`: of a plan that is listed (PlanTickets::set_lists). Error kOutOfMemory.
  PlanEngine(std::shared_ptr<const Plan> plan, const EngineSettings& settings,
             const MakeTransport& transport, const MakeTickets& lists = nullptr);
  // REQUIRED: workers and cursor have ended.
  ~PlanEngine() override;

  const Plan& plan() const { return *plan_; }

  std::unique_ptr<Fulfiller> make_worker(bool in_line) const;
  bool has_cursor() const { return cursor_ != nullptr; }
  // Goes through the stream until close_stream().
  void run_cursor() { cursor_->run(); }
  std::vector<StageSnapshot> worker_stages() const;
  std::vector<StageSnapshot> stream_stages() const;

  // What comes next; or what is to be raised in its place, which is the position then; or neither:
  // it is to be asked for again.
  struct Taken {
    std::optional<PlanOutput::Item> item;
    std::optional<LoaderFailure> failure;
  };
  // Of elements that were taken already. has_held(): whether there is something.
  bool has_held() const { return output_.anything_to_take(); }
  Taken take_held();
  // The ticket that the feed found, none of whose units failed.
  Taken take();
  // Whether that is to be made again instead (PlanOutput::apart).
  bool apart() { return output_.apart(board()); }
  // What a unit of a worker in this process failed with. REQUIRED: ResultKind::kError.
  static LoaderFailure failure_of(Unit& unit, const Ticket& ticket);
  // After Feed::Poll::kFailed.
  LoaderFailure stream_failure();
  // Counts them, but for those that are raised.
  void add_losses(const std::vector<Outcome::Loss>& losses, uint64_t epoch);

  // A pass of the user's, the one with `epoch` in it, may be several rounds, each an epoch of the
  // feed's. The one to be asked for tickets; nothing: the pass is over.
  std::optional<uint64_t> round(uint64_t epoch) const;
  // The feed has left a round: counts what was lost behind its last batch.
  void leave_round();
  // Nothing of the pass is left, nor held.
  bool gave_all(uint64_t epoch) const;
  bool holds() const { return output_.anything_held(); }
  // Whether the last pass was left in the middle.
  bool amid() const;
  // The epoch with which the next pass begins: goes there if the last one was left in the middle.
  // `resumed`: the position was set, so the pass goes on. `amid`: as amid(), or it failed.
  uint64_t begin_pass(bool resumed, bool amid);

  // The source has another length. `version`: Feed::set_version.
  void length_changed(uint64_t version) {
    tickets().length_changed();
    feed().set_version(version);
  }

  // Of what is handed out next.
  Position position() const { return output_.position(); }
  LoaderState state() const { return output_.state(); }
  // Error kInvalidArgument: restore() would refuse it.
  void check(const LoaderState& state) const { (void)output_.place_of(state); }
  // Error kInvalidArgument, and nothing has changed: `state` is none of this plan and seed.
  void restore(const LoaderState& state);

  // Ends run_cursor().
  void close_stream();
  // Nothing is taken any more: lets go of what is held. The state stays what it is.
  void close_output() { output_.close(); }
  // When workers and cursor have ended as well: lets go of what stream and tickets hold.
  void let_go();

 private:
  static EngineSettings settings_of(const Plan& plan, EngineSettings settings);
  static Needs needs_of(const Plan& plan, const EngineSettings& settings);
  void make_cursor(const Cursor::Shares& shares);
  PlanTickets& tickets() { return static_cast<PlanTickets&>(FeedEngine::tickets()); }
  uint64_t pass_of(uint64_t epoch) const;

  const std::shared_ptr<const Plan> plan_;
  std::unique_ptr<Transport> transport_;
  PlanOutput output_;
  uint64_t delivered_epoch_ = 0;        // of the last batch, or where it was set to go on
  std::unique_ptr<Sections> sections_;  // of a plan that has some, where there are workers
  std::unique_ptr<Cursor> cursor_;      // of a plan with a stream
};

}  // namespace penstock
