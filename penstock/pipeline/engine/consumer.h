#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>

#include "penstock/pipeline/engine/plan_engine.h"

namespace penstock {

// The consumer's end of a Loader, for C++ and Python: iterations, and the loop that takes batches.
//
// A Loader has one position, so one iteration at a time. Each iteration has a serial:
//   - current: after begin_iteration().
//   - ended: after restore(), because the user set the position.
//   - overtaken: after another begin_iteration().
//
// A round is an epoch of the scheduler. Within an iteration:
//   - no round -> in a round: enter_round().
//   - in a round -> in the next one: next() found the round's end, and the pass has another round.
//   - in a round -> no round: next() found the pass' end; fail(), restore(), seek().
//
// Threads: one at a time.
class Consumer {
 public:
  // What depends on the language of the consumer.
  class Policy {
   public:
    virtual ~Policy() = default;
    // Throws, if the Loader was closed or is another process'.
    virtual void check_open() = 0;
    // Takes the scheduler's current ticket. False: all of it was skipped.
    virtual bool take() = 0;
    virtual void hand_out(const PlanOutput::Item& item) = 0;
    // Calls PlanEngine::leave_round().
    virtual void leave_round() = 0;
    // Waits for a worker, possibly not to the end.
    virtual void wait() = 0;
    // Called after each ticket that the consumer made itself.
    virtual void attend() {}
    // Call Consumer::fail(), and throw.
    [[noreturn]] virtual void raise(Task& task, const Ticket& ticket) = 0;
    [[noreturn]] virtual void raise(LoaderFailure failure) = 0;
  };

  // `engine` and `policy` outlive it.
  Consumer(PlanEngine& engine, Policy& policy) : engine_(engine), policy_(policy) {}

  // The consumer makes the batches itself.
  void work_in_line(std::unique_ptr<TicketRunner> worker) { worker_ = std::move(worker); }
  bool works_in_line() const { return worker_ != nullptr; }
  // Call it when no more batches are taken.
  void drop_worker() { worker_.reset(); }

  // The first epoch of the next pass. Goes there if the last pass is unfinished. `resumed`: the
  // position was set, so its pass continues.
  uint64_t begin_pass(bool resumed);
  void enter_round(uint64_t epoch);
  std::optional<uint64_t> round() const { return round_; }

  uint64_t begin_iteration() { return latest_ = ++serial_; }
  bool is_current(uint64_t serial) const { return serial == serial_; }
  // False: the iteration was ended. Error kInvalidArgument: it was overtaken.
  bool check_iteration(uint64_t serial) const;

  // Takes batches until the policy handed one out. False: the pass has ended.
  bool next();
  // Gives the policy what was taken; false: nothing, all of it was skipped.
  bool hand_out(PlanEngine::Taken taken);

  // The position is a ticket that failed. It is tried again in the next round that is entered.
  void fail();
  // Whether no round was entered since.
  bool failed() const { return failed_; }

  // Sets the position, in all iterations' absence.
  void seek(const Position& to, std::set<uint64_t> ahead);
  // Sets the position and ends the iteration. Error kInvalidArgument: as PlanEngine::restore; then
  // nothing has changed.
  void restore(const LoaderState& state);

 private:
  PlanEngine& engine_;
  Policy& policy_;
  std::unique_ptr<TicketRunner> worker_;
  std::optional<uint64_t> round_;
  uint64_t serial_ = 0;  // of the current iteration; not in use if that was ended
  uint64_t latest_ = 0;  // of the last iteration that began
  bool failed_ = false;
};

}  // namespace penstock
