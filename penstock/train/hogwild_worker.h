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

// One worker of a Hogwild: changes weights that others change at the same time, with no lock, by
// relaxed loads and stores (relaxed.h). A worker by itself gives the bits of an Updater.
//
// Threads: its own only. Weights may be read plainly, where what is torn between two updates does
// no harm (that is Hogwild), or through read(snapshot), which is free of data races.
class HogwildWorker {
 public:
  struct Options {
    bool shares_state = true;  // false: nobody else has these slabs of state
    NonFinite non_finite = NonFinite::kRaise;
    // The copy of its group, if the weights have several: then `parameters` are that one's, and
    // `state` is shared within the group at most.
    std::shared_ptr<Replica> replica = nullptr;
    uint64_t merge_every = 0;  // as MergePace
  };

  // `state` as Updater::state(). `number` is this worker's on the board.
  HogwildWorker(Parameters parameters, Optimizer optimizer, std::vector<Slab> state,
                HogwildBoard board, size_t number, Options options);

  size_t number() const { return number_; }
  // What it reads and changes: its group's, if there are several.
  const Parameters& parameters() const { return parameters_; }
  const HogwildBoard& board() const { return board_; }
  uint64_t updates() const { return own_updates_; }  // that this state has seen, if it is its own
  void set_updates(uint64_t updates) { own_updates_ = updates; }

  // From here on updates of others make what this worker does stale.
  void read() { read_version_ = parameters_.version(); }
  // The same, and copies the weights as they are now. Error kInvalidArgument: another layout.
  void read(const Slab& snapshot);

  // One update from gradients * scale, after which they are zero, so that the next can be added up
  // in them. False: they were not finite, and skipped. Errors as Updater::apply; `gradients` are
  // then as they were.
  bool apply(const Slab& gradients, double scale = 1);
  // One update of some blocks, or some rows of them, and of nothing else; each block at most once.
  // Errors as Updater::apply_rows; nothing was changed.
  bool apply(std::span<const GradientPart> parts, double scale = 1);
  // Counts `n` updates that the step made by itself, with relaxed::store.
  void count(uint64_t n);

  void note_loss(double loss) const { board_.note_loss(number_, loss); }

 private:
  template <typename Describe>
  bool accept(bool finite, Describe describe);
  template <typename Squares>
  kernels::Pass begin_update(double scale, Squares squares);
  void update(const kernels::Pass& pass, size_t at, std::span<const float> gradients);
  void end_update(uint64_t n);

  const Parameters parameters_;
  const Optimizer optimizer_;
  const std::vector<Slab> state_;
  const HogwildBoard board_;
  const size_t number_;
  const Options options_;
  float* states_[2] = {};
  uint64_t read_version_ = 0;
  uint64_t own_updates_ = 0;
  MergePace pace_;
  GradientParts parts_;
};

}  // namespace penstock::train
