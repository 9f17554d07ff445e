#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "penstock/train/gradient_parts.h"
#include "penstock/train/replica.h"
#include "penstock/train/shared_counters.h"
#include "penstock/train/thread_group.h"
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

// Result of a run of Hogwild, or its progress so far.
struct HogwildReport {
  uint64_t steps = 0;       // finished steps
  uint64_t updates = 0;     // applied updates
  uint64_t skipped = 0;     // gradients that were not finite and not applied
  uint64_t non_finite = 0;  // all gradients that were not finite
  double seconds = 0;
  uint64_t copied = 0;  // bytes of weights and gradients copied for a framework
  // Mean of all noted losses, and of about the last hundred of each worker; NaN: none.
  double loss = std::numeric_limits<double>::quiet_NaN();
  double recent_loss = std::numeric_limits<double>::quiet_NaN();
  double updates_per_second() const {
    return seconds > 0 ? static_cast<double>(updates) / seconds : 0;
  }
  // Histogram of staleness: for each apply() or count(), the updates by other workers between this
  // worker's read and its write. (smallest staleness of a bucket, count); exact below
  // SharedCounters::kExact, then powers of two. Without empty buckets.
  std::vector<std::pair<uint64_t, uint64_t>> staleness;
  std::vector<std::pair<uint64_t, uint64_t>> workers;  // steps and updates of each worker
};

// Sums up the counters of all workers since `before`, which has each worker's counts at the start.
HogwildReport report_of(const SharedCounters& counters,
                        std::span<const SharedCounters::Counts> before, double seconds);

// Trains by workers that apply gradients to the same weights at the same time, with no lock (Niu et
// al. 2011). Uses an updater's parameters, optimizer and state. REQUIRED: nothing else applies with
// that updater during a run. docs/training.md, section 7.
//
//   Hogwild hogwild(updater, 2);
//   HogwildReport report = hogwild.run([&](HogwildWorker& worker) -> Hogwild::Step {
//     return [&worker, gradients = worker.parameters().gradients(), &feed] {
//       std::optional<Batch> batch = feed.claim_step();  // with a lock of its own
//       if (!batch) return false;
//       worker.read();
//       compute(worker.weights(), *batch, gradients);
//       worker.apply(gradients);
//       return true;
//     };
//   });
//
// Threads: one at a time.
class Hogwild {
 public:
  struct Options {
    // Each worker has optimizer state of its own: worker 0 the updater's, the others copies of it,
    // which live as long as this object.
    bool own_state = false;
    NonFinite non_finite = NonFinite::kRaise;
    // Whether each worker computes with a copy of the weights (HogwildWorker::weights), so that
    // forward and backward pass see the same values. kUpdate suits dense gradients and weights of
    // which a core's cache holds two copies: each cache line that other cores changed is then
    // fetched once in a step and not twice. A step that does not call read() computes with the
    // former copy.
    Snapshots snapshots = Snapshots::kNone;
    // Number of groups of workers, each with weights and state of its own (replica.h): worker i is
    // in group i * replicas / workers, and runs after its first step on cores that share a cache.
    // Groups are merged into the updater's weights from time to time and when a run ends; the
    // updater's state is the first group's. Staleness counts the group's own updates. 1: all
    // workers change the updater's weights.
    size_t replicas = 1;
    // Updates of a worker between merges; 0: merges take a tenth of its time.
    uint64_t merge_every = 0;
  };
  // One step of a worker; false: the worker has no more steps.
  using Step = std::function<bool()>;
  // Called on each worker's thread when a run begins.
  using MakeStep = std::function<Step(HogwildWorker&)>;

  // Conditions that end a run before every worker's step has returned false.
  struct Until {
    uint64_t steps = UINT64_MAX;  // steps of all workers together, exactly
    int64_t duration_ns = -1;     // < 0: no limit; steps that have begun are finished
    // Called on run()'s thread; true ends the run.
    std::function<bool(const HogwildReport&)> enough = {};
    int64_t ask_every_ns = 100'000'000;
  };

  // `updater` must outlive this object. Error kInvalidArgument (no workers; no replicas; more
  // replicas than workers), kOutOfMemory.
  Hogwild(Updater& updater, size_t workers, Options options);
  Hogwild(Updater& updater, size_t workers) : Hogwild(updater, workers, Options()) {}

  // For workers made elsewhere, such as in other processes, that share these counters.
  Hogwild(Updater& updater, SharedCounters counters);
  // The same for weights and an optimizer outside of slabs, such as a device's: run_workers()
  // counts and ends the workers, and they apply their updates.
  explicit Hogwild(SharedCounters counters);

  // Returns when all workers have ended. An exception from a worker, `make` or `enough` ends all
  // workers and is then thrown here; failed() is its origin.
  HogwildReport run(const MakeStep& make, const Until& until);
  HogwildReport run(const MakeStep& make) { return run(make, Until()); }
  // Calls work(number) on one thread for each worker; `work` claims steps from the counters until
  // none is left. `started` is called when all threads have begun; the run's time begins after it.
  HogwildReport run_workers(const std::function<void(size_t worker)>& work, const Until& until,
                            Threading threading = {}, const std::function<void()>& started = {});

  struct Failed {
    size_t worker;
    uint64_t step;  // the worker's step, from 0
  };
  // The worker whose exception ended the last run.
  const std::optional<Failed>& failed() const { return failed_; }

  const SharedCounters& counters() const { return counters_; }
  std::vector<HogwildWorker>& workers() { return workers_; }
  size_t group_of(size_t worker) const;

 private:
  void work(HogwildWorker& worker, const MakeStep& make);

  Updater* const updater_;  // null: its users have the optimizer's state
  const Options options_;
  SharedCounters counters_;
  std::vector<std::shared_ptr<Replica>> replicas_;  // empty, or at least two
  std::vector<HogwildWorker> workers_;
  std::optional<Failed> failed_;
};

}  // namespace penstock::train
