#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "penstock/train/rounds.h"
#include "penstock/train/thread_group.h"
#include "penstock/train/tower.h"
#include "penstock/train/updater.h"

namespace penstock::train {

// Result of a run of towers, or its progress so far.
struct TowersReport {
  uint64_t updates = 0;  // applied updates: rounds whose gradient was not skipped
  uint64_t rounds = 0;
  uint64_t batches = 0;  // batches used in these rounds
  double seconds = 0;
  // Mean of all losses that steps returned, and that of the last round; weighted as gradients are.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double last_loss = std::numeric_limits<double>::quiet_NaN();
  uint64_t copied_bytes = 0;  // bytes of gradients that had to be copied for a framework
  double updates_per_second() const {
    return seconds > 0 ? static_cast<double>(updates) / seconds : 0;
  }
};

// Trains by rounds: each tower computes a gradient from its own batch, and the mean of the
// gradients is applied as one update, which all towers see in the next round. Gradients are added
// up as a tree over tower numbers, so the result has the same bits whatever the timing; it equals
// that of one large batch, except for the rounding of sums. While towers compute, the next round is
// taken and staged. docs/training.md, section 7, has the states and transitions.
//
//   Loader feed = dataset.batch(32).build();
//   Towers towers(updater, 2);
//   TowersReport report = towers.run(
//       feed,
//       [](Tower& tower) -> Towers::Step {
//         return [&tower](Example& batch) {
//           return compute(tower.parameters(), batch, tower.gradients());  // the loss
//         };
//       },
//       {.epochs = 10});
//
// Memory: a slab of gradients for each tower, and two rounds of batches.
//
// Threads: one at a time. Steps run on one thread for each tower, for the duration of a run; the
// feed, `weigh` and `stage` are called on run()'s thread. Closing the feed ends a run.
class Towers {
 public:
  struct Options {
    // The weight of a batch in the mean, >= 0. Empty: its number of rows.
    std::function<double(const Example& batch)> weigh = {};
    // Called while the step before runs; returns the tower's batch, for example on its device.
    std::function<Example(size_t tower, Example batch)> stage = {};
  };
  // One step of a tower: leaves the gradient of the mean over the batch in the tower, and returns
  // the loss, if there is one. The step owns the batch.
  using Step = std::function<std::optional<double>(Example& batch)>;
  // Called on each tower's thread when a run begins; no step begins before all calls have returned.
  using MakeStep = std::function<Step(Tower&)>;

  // The rounds of a run, for batches of any type. Rounds with MakeStep is the implementation for
  // Examples.
  class Work {
   public:
    // The weight of each tower's batch in the mean, >= 0; empty: the tower has no batch.
    using Weights = std::vector<std::optional<double>>;

    virtual ~Work() = default;
    // Called on each tower's thread when a run begins.
    virtual void make(Tower& tower) = 0;
    // Takes and stages the next round, while steps compute the round before. Empty: there is none.
    virtual std::optional<Weights> take() = 0;
    // Makes the round that was taken last the current one. No step runs meanwhile.
    virtual void advance() = 0;
    // Runs a step with the tower's batch of the current round, on the tower's thread.
    virtual std::optional<double> compute(Tower& tower) = 0;
    // For towers without an updater: applies one update from the mean of the gradients that the
    // round's steps computed, with these weights (0: the tower had no batch). False: the update was
    // skipped. No step runs meanwhile. Default: Error kInvalidArgument.
    virtual bool apply(std::span<const double> weights);
  };

  // Conditions that end a run: the first that is met.
  struct Until {
    uint64_t epochs = 1;          // passes over the feed; UINT64_MAX: no limit
    uint64_t steps = UINT64_MAX;  // rounds, exactly; no further batch is taken
    int64_t duration_ns = -1;     // < 0: no limit; a round that has begun is finished
    // Called after each round; true ends the run.
    std::function<bool(const TowersReport&)> enough = {};
  };

  // `updater` must outlive this. REQUIRED: nothing else applies with it during a run. Error
  // kInvalidArgument (no towers), kOutOfMemory.
  Towers(Updater& updater, size_t towers, Options options);
  Towers(Updater& updater, size_t towers) : Towers(updater, towers, Options()) {}
  // One tower for each of these slabs of gradients. options.weigh and options.stage are not used.
  Towers(Updater& updater, std::vector<Slab> gradients);
  // For weights and gradients outside of slabs, such as a device's: run() with a Work that applies
  // the updates. These towers have no parameters() and no gradients().
  explicit Towers(size_t towers);

  // An exception from a step, `make`, the feed, the update or `enough` ends the run and is thrown
  // here once all towers have ended their step and the feed has returned the next round or failed
  // (to end a wait for the feed, close it). Of several towers' exceptions the lowest number's is
  // thrown. Nothing of that round was applied; an exception from the feed is thrown after the
  // rounds before it. Batches that were taken and not used are dropped. Error kInvalidArgument: a
  // batch without a weight, a round of weight 0, or as Rounds.
  TowersReport run(Rounds feed, const MakeStep& make, const Until& until);
  TowersReport run(Rounds feed, const MakeStep& make) {
    return run(std::move(feed), make, Until());
  }
  TowersReport run(Work& work, const Until& until, Threading threading);

  struct Failed {
    std::optional<size_t> tower;  // empty: the feed, or the update from all gradients
    uint64_t round;               // of this run, from 0
  };
  // The origin of the exception that ended the last run.
  const std::optional<Failed>& failed() const { return failed_; }

  const std::vector<Tower>& towers() const { return towers_; }

 private:
  class Run;
  class Examples;

  Updater* const updater_;  // null: the Work applies updates
  const Options options_;
  std::vector<Tower> towers_;
  std::optional<Failed> failed_;
};

}  // namespace penstock::train
