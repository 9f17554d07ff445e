#pragma once

#include <cstdint>
#include <span>

namespace penstock {

// Assigns indices to batches. A pure function of (options, epoch, base, step), so any worker can
// run a ticket at any time and repeatedly.
//
// An epoch orders the indices 0 ... length-1: unchanged, or shuffled by a Bijection keyed by (seed,
// epoch). Global batch g has positions [g * batch_size, (g + 1) * batch_size) of that order. Batch
// `step` of rank r is global batch base + step * world + r. `base` is 0, or the number of global
// batches already used if an interrupted epoch continues with another world size.
//
// All ranks have equally many batches in an epoch. The handling of the remainder:
// - drop_last: only full global batches are used, and only whole rounds of `world` batches.
// - Otherwise, world == 1: the last batch is short; every index occurs exactly once.
// - Otherwise, world > 1: the last round is padded. Positions >= length wrap round to position %
//   length, so all batches are full, and up to world * batch_size - 1 indices occur twice.
//
// Immutable; any thread.
class Order {
 public:
  struct Options {
    uint64_t length = 0;
    uint64_t batch_size = 1;
    bool shuffle = false;
    uint64_t seed = 0;
    bool drop_last = false;
    uint32_t rank = 0, world = 1;
  };

  // Error kInvalidArgument: invalid options.
  explicit Order(const Options& options);

  const Options& options() const { return options_; }

  // The number of this rank's batches in an epoch that is entered at `base`.
  uint64_t steps(uint64_t base = 0) const;

  // Samples of this rank's batch `step`; 0 from steps(base) on.
  uint64_t samples_in(uint64_t base, uint64_t step) const;

  // Position of a batch's row in the epoch's order; may be >= length if batches are padded.
  uint64_t position(uint64_t base, uint64_t step, uint64_t row) const {
    return (base + step * options_.world + options_.rank) * options_.batch_size + row;
  }

  // Rows [first_row, first_row + out.size()) of the batch. Error kInvalidArgument: the batch has
  // fewer rows.
  void indices(uint64_t epoch, uint64_t base, uint64_t step, uint64_t first_row,
               std::span<uint64_t> out) const;

  // The index that replaces the failed sample at `position`. It is the index at position + attempt
  // of another permutation of the same epoch. Successive attempts visit every index once, then
  // begin again. Error kInvalidArgument: length is 0.
  uint64_t replacement(uint64_t epoch, uint64_t position, uint32_t attempt) const;

 private:
  Options options_;
};

}  // namespace penstock
