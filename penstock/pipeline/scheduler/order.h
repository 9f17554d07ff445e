#pragma once

#include <cstdint>
#include <span>

namespace penstock {

// Which indices belong to which batch: a pure function of (options, epoch, base, step), so that a
// ticket can be run by anybody, at any time, as often as need be.
//
// An epoch puts 0 ... length-1 in an order: as they are, or shuffled by a Bijection keyed (seed,
// epoch). Global batch g is positions [g * batch_size, (g + 1) * batch_size) of that order. Rank
// r's batch number `step` is global batch base + step * world + r. `base` is 0, or the number of
// global batches that were already used when an interrupted epoch goes on at another world size.
//
// The remainder: all ranks have equally many batches in an epoch.
//   drop_last               only full global batches are used, and only whole rounds of `world`;
//   otherwise, world == 1   the last batch is short; every index occurs exactly once;
//   otherwise, world > 1    the last round is padded: positions >= length wrap round to
//                           position % length, so that all batches are full and up to
//                           world * batch_size - 1 indices occur twice.
//
// Immutable: any thread may call anything.
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

  // Error kInvalidArgument for options that cannot be.
  explicit Order(const Options& options);

  const Options& options() const { return options_; }

  // Batches that this rank has in an epoch from `base` on.
  uint64_t steps(uint64_t base = 0) const;

  // Samples of this rank's batch `step`; 0 from steps(base) on.
  uint64_t samples_in(uint64_t base, uint64_t step) const;

  // Place in the epoch's order of a batch's row; may be >= length where batches are padded.
  uint64_t position(uint64_t base, uint64_t step, uint64_t row) const {
    return (base + step * options_.world + options_.rank) * options_.batch_size + row;
  }

  // Rows [first_row, first_row + out.size()) of the batch.
  // Error kInvalidArgument if the batch has fewer.
  void indices(uint64_t epoch, uint64_t base, uint64_t step, uint64_t first_row,
               std::span<uint64_t> out) const;

  // A substitute for the sample at `position` that failed: the index at position + attempt of
  // another permutation of the same epoch. All attempts together visit every index once, then
  // begin again. Error kInvalidArgument if length is 0.
  uint64_t replacement(uint64_t epoch, uint64_t position, uint32_t attempt) const;

 private:
  Options options_;
};

}  // namespace penstock
