#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/train/gradient_parts.h"
#include "penstock/train/replica.h"
#include "penstock/train/shared_counters.h"
#include "penstock/train/updater.h"

namespace penstock::train {

// Which weights a worker's steps compute with.
enum class Snapshots {
  kNone,  // the shared weights, which other workers change
  kStep,  // a copy of the worker's own, made by read()
  // A copy of the worker's own, into which apply() to all weights also writes. read() then copies
  // nothing, unless others applied more than one update since. Changes of the weights other than
  // updates are seen one update later. With a replica the same as kStep.
  kUpdate,
};

// One worker of a Hogwild: changes weights that others change at the same time, with no lock, by
// relaxed loads and stores (relaxed.h). A single worker gives the bits of an Updater.
//
// Threads: the worker's own. Others may read the shared weights without synchronisation, if torn
// values do no harm (as in Hogwild); a snapshot is read without a data race.
class HogwildWorker {
 public:
  struct Options {
    bool shares_state = true;  // false: `state` is this worker's alone
    NonFinite non_finite = NonFinite::kRaise;
    Snapshots snapshots = Snapshots::kNone;
    // The weights of the worker's group, if there are several groups: `parameters` are then the
    // replica's, and `state` is shared at most within the group.
    std::shared_ptr<Replica> replica = nullptr;
    uint64_t merge_every = 0;  // see MergePace
  };

  // `state` as Updater::state(). `number`: the worker's index in the counters.
  HogwildWorker(Parameters parameters, Optimizer optimizer, std::vector<Slab> state,
                SharedCounters counters, size_t number, Options options);

  size_t number() const { return number_; }
  // The weights that updates change: the group's, if there are several groups.
  const Parameters& parameters() const { return parameters_; }
  // The weights that a step computes with: the snapshot, or parameters(). A snapshot is constant
  // until the next begin() or read(), and with kUpdate apply().
  const Parameters& weights() const { return weights_; }
  const SharedCounters& counters() const { return counters_; }
  uint64_t updates() const { return own_updates_; }  // updates of this worker's own state
  void set_updates(uint64_t updates) { own_updates_ = updates; }

  // Call before the first step of a run: weights may have changed since the last run.
  void begin();
  // Call before a step. Updates the snapshot, if there is one. Staleness counts other workers'
  // updates from here on.
  void read();
  // Whether read() would copy nothing now.
  bool up_to_date() const;

  // Applies one update from gradients * scale, and zeroes the gradients. False: not finite, and
  // skipped. Errors as Updater::apply; the gradients are then unchanged. REQUIRED: the gradients do
  // not lie in the weights.
  bool apply(const Slab& gradients, double scale = 1);
  // Applies one update to some blocks, or some rows of them, each block at most once. Everything
  // else is untouched. Errors as Updater::apply_rows; kInvalidArgument also for values that lie in
  // weights that this update changes. After an error nothing was changed.
  bool apply(std::span<const GradientPart> parts, double scale = 1);
  // Counts `n` updates that the step made itself, with relaxed::store.
  void count(uint64_t n);

  void note_loss(double loss) const { counters_.note_loss(number_, loss); }

 private:
  template <typename Describe>
  bool accept(bool finite, Describe describe);
  template <typename Squares>
  kernels::Pass begin_update(double scale, Squares squares);
  float* carried(bool all) const;
  void update(const kernels::Pass& pass, size_t at, std::span<const float> gradients, float* copy);
  void end_update(uint64_t n, bool carried);

  const Parameters parameters_, weights_;
  const Optimizer optimizer_;
  const std::vector<Slab> state_;
  const SharedCounters counters_;
  const size_t number_;
  const Options options_;
  float* states_[2] = {};
  uint64_t read_version_ = 0;     // versions up to here count as seen, own updates included
  uint64_t carried_version_ = 0;  // the version of the snapshot that apply() wrote
  bool current_ = false;          // apply() wrote the snapshot, and read() was not called since
  uint64_t own_updates_ = 0;
  MergePace pace_;
  GradientParts parts_;
};

}  // namespace penstock::train
