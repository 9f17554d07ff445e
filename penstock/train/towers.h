#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/train/rounds.h"
#include "penstock/train/thread_group.h"
#include "penstock/train/tower.h"
#include "penstock/train/updater.h"

namespace penstock::train {

// What a run of towers came to, or has come to so far.
struct TowersReport {
  uint64_t updates = 0;  // that were applied: rounds without those whose gradient was skipped
  uint64_t rounds = 0;
  uint64_t batches = 0;  // that were used in them
  double seconds = 0;
  // The mean of all that steps returned, and of the last round, weighted as gradients are.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double last_loss = std::numeric_limits<double>::quiet_NaN();
  uint64_t copied_bytes = 0;  // of gradients that a framework could not leave in place
  double updates_per_second() const {
    return seconds > 0 ? static_cast<double>(updates) / seconds : 0;
  }
};

// Trains by rounds: each tower computes a gradient from its own batch, their mean is applied as one
// update, which all see in the next round. Gradients are added up as a tree over tower numbers, so
// the result is the same, bit for bit, however long each takes; it is that of one large batch but
// for the rounding of sums. While towers compute, the next round is taken and staged.
// States, and who moves them: docs/training.md, section 7.
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
// Threads: one at a time. Steps run on one thread for each tower, which live for a run; the feed,
// `weigh` and `stage` are called on run()'s. Whoever closes the feed ends a run.
class Towers {
 public:
  struct Options {
    // How much a batch counts for in the mean, >= 0. Empty: as many rows as it has.
    std::function<double(const Example& batch)> weigh = {};
    // Called while the step before runs; what it returns is that tower's batch.
    std::function<Example(size_t tower, Example batch)> stage = {};
  };
  // One step of a tower: leaves the gradient of the mean over the batch with the tower, and returns
  // the loss, if it has one. The batch is the step's to keep or to let go.
  using Step = std::function<std::optional<double>(Example& batch)>;
  // Called by each tower on its thread when a run begins; no step begins before all have been made.
  using MakeStep = std::function<Step(Tower&)>;

  // The rounds of a run, for batches of any type; Rounds and MakeStep are one for Examples.
  class Work {
   public:
    // How much each tower's batch counts for in the mean, >= 0; empty: the tower has no batch.
    using Weights = std::vector<std::optional<double>>;

    virtual ~Work() = default;
    // Called on each tower's thread when a run begins.
    virtual void make(Tower& tower) = 0;
    // Takes and stages the next round, while steps compute the round before; empty: there is none.
    virtual std::optional<Weights> take() = 0;
    // The round that was taken last is the round to compute. No step runs meanwhile.
    virtual void advance() = 0;
    // A step with the tower's batch, on the tower's thread.
    virtual std::optional<double> compute(Tower& tower) = 0;
  };

  // When a run ends: at the first of these.
  struct Until {
    uint64_t epochs = 1;          // passes over the feed; UINT64_MAX: without end
    uint64_t steps = UINT64_MAX;  // rounds; no batch more is taken
    int64_t duration_ns = -1;     // < 0: for ever; the round that has begun is finished
    std::function<bool(const TowersReport&)> enough = {};  // asked after each round
  };

  // `updater` must outlive this; nobody else applies with it during a run.
  // Error kInvalidArgument (no towers), kOutOfMemory.
  Towers(Updater& updater, size_t towers, Options options);
  Towers(Updater& updater, size_t towers) : Towers(updater, towers, Options()) {}
  // A tower for each of these gradients; options.weigh and options.stage are not used.
  Towers(Updater& updater, std::vector<Slab> gradients);

  // What a step, `make`, the feed, the update or `enough` throws ends the run and is thrown here
  // once all towers have ended their step, and the feed has given the next round or refused it
  // (whoever must not wait for a feed closes it). Of several towers' it is the first's. Nothing of
  // its round was applied; what the feed throws comes after the rounds before it. Batches that were
  // taken and not used are let go. Error kInvalidArgument: a batch that cannot be weighed, a round
  // of weight 0, or as Rounds.
  TowersReport run(Rounds feed, const MakeStep& make, const Until& until);
  TowersReport run(Rounds feed, const MakeStep& make) {
    return run(std::move(feed), make, Until());
  }
  TowersReport run(Work& work, const Until& until, Threading threading);

  struct Failed {
    std::optional<size_t> tower;  // empty: the feed, or the update from all towers' gradients
    uint64_t round;               // of this run, from 0
  };
  // Where what ended the last run was thrown.
  const std::optional<Failed>& failed() const { return failed_; }

  const std::vector<Tower>& towers() const { return towers_; }

 private:
  class Run;
  class Examples;

  Updater& updater_;
  const Options options_;
  std::vector<Tower> towers_;
  std::optional<Failed> failed_;
};

}  // namespace penstock::train
