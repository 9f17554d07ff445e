#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "loss_log.h"
#include "penstock/observe/snapshot.h"
#include "penstock/pipeline/engine/plan_output.h"
#include "penstock/pipeline/engine/plan_tickets.h"
#include "penstock/pipeline/feed/feed.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/loader_state.h"
#include "penstock/pipeline/plan.h"
#include "penstock/pipeline/streams/cursor.h"
#include "penstock/pipeline/streams/section.h"
#include "penstock/workers/worker.h"
#include "unit_values.h"

namespace penstock::python {

// What of a Loader's engine is a Dataset's own: who works on its chain, who goes through its
// stream, what its tickets are to who takes them, and places. It raises nothing that a stage
// failed with: that is handed over, for the engine to raise.
//
//   go_on() ──> the feed is polled ──> take() ──> take_held() until there is nothing ──> go_on()
//
// Threads: whoever iterates, one at a time and with the GIL; but plan(), chain_worker(),
// run_cursor(), stream_stages() and close() are for any thread, also without it.
class PlanFeed {
 public:
  // Of the Loader; they outlive this.
  struct Engine {
    Board& board;
    Allocator& arena;
    Feed& feed;
    PlanTickets& tickets;
    UnitValues& values;
    LossLog& losses;
  };
  struct Options {
    std::vector<std::byte> sample;  // BuiltPlan::sample
    uint64_t seed = 0;
    uint32_t retries = 0;
    bool skip = false;       // an element that fails is left out
    bool processes = false;  // workers are in other ones
    uint32_t workers = 1;
    uint32_t queue = 10, longest_queue = 10;  // to begin with; at its longest
    Cursor::Shares shares{};
    std::function<void()> attend;  // Cursor::Options::attend
  };
  PlanFeed(std::shared_ptr<const Plan> plan, const Engine& engine, const Options& options);

  const Plan& plan() const { return *plan_; }

  // Workers, each of one thread.
  std::unique_ptr<Fulfiller> chain_worker(bool in_line) const;
  // Of a plan with a stream: goes through it until close().
  void run_cursor() { cursor_->run(); }
  std::vector<StageSnapshot> stream_stages() const;

  // What comes next: an element, or a batch; or what is to be raised in its place, which is the
  // position then; or neither, and it is to be asked for again.
  struct Taken {
    nanobind::object value;
    std::optional<LoaderFailure> failure;
  };
  // Of elements that were taken already.
  Taken take_held();
  // The ticket that the feed found, none of whose units failed.
  Taken take();
  // Whether that is to be made again instead (PlanOutput::apart).
  bool apart() { return output_.apart(engine_.board); }
  // What one of its units failed with. REQUIRED: ResultKind::kError of this process.
  static LoaderFailure failure_of(Unit& unit, const Ticket& ticket);
  // After Feed::Poll::kFailed.
  LoaderFailure stream_failure();
  // The feed's epoch to be asked for tickets, once nothing is held: a pass of the user's, the one
  // with `epoch` in it, may be several. Nothing: the pass is over.
  std::optional<uint64_t> go_on(uint64_t epoch);
  bool gave_all(uint64_t epoch) const;
  bool holds() const { return output_.anything_held(); }

  // See Core::begin_pass. `amid`: the last one was left in the middle, whatever the position says.
  uint64_t begin_pass(bool resumed, bool amid);
  Position position() const { return output_.position(); }
  LoaderState state() const { return output_.state(); }
  // Error kInvalidArgument: restore() would refuse it.
  void check(const LoaderState& state) const { (void)output_.place_of(state); }
  void restore(const LoaderState& state);

  // Ends run_cursor().
  void close();
  // After close(): nothing is taken any more, and what is held for it goes.
  void close_output() { output_.close(); }
  // When Python's threads have ended as well: lets go of what stream and tickets hold.
  void let_go();

 private:
  void make_cursor(const Options& options);
  std::vector<Outcome::Loss> losses_in(Unit& unit);
  nanobind::object object_of(const PlanOutput::Item& item) const;
  nanobind::object columns_of(const Block& block) const;
  void note_taken_losses();
  void note_losses(const std::vector<Outcome::Loss>& losses, uint64_t epoch);
  void note_leftover();
  uint64_t pass_of(uint64_t epoch) const;

  std::shared_ptr<const Plan> plan_;
  std::vector<std::byte> sample_;
  Engine engine_;
  uint64_t seed_;
  uint32_t retries_;
  bool skip_, processes_;
  PlanOutput output_;
  uint64_t delivered_epoch_ = 0;         // of the last batch, or where it was set to go on
  std::unique_ptr<SectionInlet> inlet_;  // of a plan with sections that others make
  std::unique_ptr<Sections> sections_;
  std::unique_ptr<Cursor> cursor_;  // of one with a stream
};

}  // namespace penstock::python
