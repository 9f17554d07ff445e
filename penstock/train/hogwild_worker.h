#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/train/gradient_parts.h"
#include "penstock/train/hogwild_board.h"
#include "penstock/train/replica.h"
#include "penstock/train/updater.h"

namespace penstock::train {

// What a worker's steps compute with.
enum class Snapshots {
  kNone,  // the weights that all change
  kStep,  // a copy of its own, made by read()
  // A copy of its own in which each apply() to all weights leaves what it wrote, so that read() has
  // nothing to copy, unless more than one update of others came since. A weight that is changed in
  // another way than by an update is seen an update later. With a replica as kStep.
  kUpdate,
};

// One worker of a Hogwild: changes weights that others change at the same time, with no lock, by
// relaxed loads and stores (relaxed.h). A worker by itself gives the bits of an Updater.
//
// Threads: its own only. The shared weights may be read plainly, where what is torn between two
// updates does no harm (that is Hogwild); a snapshot is read without a data race.
class HogwildWorker {
 public:
  struct Options {
    bool shares_state = true;  // false: nobody else has these slabs of state
    NonFinite non_finite = NonFinite::kRaise;
    Snapshots snapshots = Snapshots::kNone;
    // The copy of its group, if the weights have several: then `parameters` are that one's, and
    // `state` is shared within the group at most.
    std::shared_ptr<Replica> replica = nullptr;
    uint64_t merge_every = 0;  // as MergePace
  };

  // `state` as Updater::state(). `number` is this worker's on the board.
  HogwildWorker(Parameters parameters, Optimizer optimizer, std::vector<Slab> state,
                HogwildBoard board, size_t number, Options options);

  size_t number() const { return number_; }
  // What it changes: its group's, if there are several.
  const Parameters& parameters() const { return parameters_; }
  // What a step computes with: its snapshot, or what it changes. A snapshot stays as it is until
  // the next begin() or read(), or, with kUpdate, apply().
  const Parameters& weights() const { return weights_; }
  const HogwildBoard& board() const { return board_; }
  uint64_t updates() const { return own_updates_; }  // that this state has seen, if it is its own
  void set_updates(uint64_t updates) { own_updates_ = updates; }

  // Before the first step of a run: weights may have changed in any way since the last one.
  void begin();
  // Before a step: brings the snapshot up to date, if there is one, and from here on updates of
  // others make what this worker does stale.
  void read();
  // Whether read() would copy nothing now.
  bool up_to_date() const;

  // One update from gradients * scale, after which they are zero, so that the next can be added up
  // in them. False: they were not finite, and skipped. Errors as Updater::apply; `gradients` are
  // then as they were. Gradients do not lie in weights.
  bool apply(const Slab& gradients, double scale = 1);
  // One update of some blocks, or some rows of them, and of nothing else; each block at most once.
  // Errors as Updater::apply_rows, and kInvalidArgument for values that lie in weights which the
  // update changes; nothing was changed.
  bool apply(std::span<const GradientPart> parts, double scale = 1);
  // Counts `n` updates that the step made by itself, with relaxed::store.
  void count(uint64_t n);

  void note_loss(double loss) const { board_.note_loss(number_, loss); }

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
  const HogwildBoard board_;
  const size_t number_;
  const Options options_;
  float* states_[2] = {};
  uint64_t read_version_ = 0;     // what counts as seen, own updates included
  uint64_t carried_version_ = 0;  // what all of the carried snapshot has seen
  bool current_ = false;          // apply() brought them there, and nobody has read() since
  uint64_t own_updates_ = 0;
  MergePace pace_;
  GradientParts parts_;
};

}  // namespace penstock::train
