#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "penstock/base/os.h"

namespace penstock::train {

// What the workers of one Hogwild share besides weights: how many steps may still begin, whether to
// stop, how many updates the optimizer's state has seen, and each worker's own counters. A handle:
// copies are the same board. Threads: any; the counters of a worker have one writer at a time.
//
// A shared one is a memfd, for worker processes. A process that is killed leaves counters that are
// whole, since each is one word, and that say how far it was (`begun` against `applied`).
class HogwildBoard {
 public:
  // Staleness: exact below 32, then a bucket for each power of two.
  static constexpr size_t kExact = 32;
  static constexpr size_t kBuckets = kExact + 59;
  static size_t bucket(uint64_t staleness) {
    return staleness < kExact ? staleness : kExact + std::bit_width(staleness) - 6;
  }
  static uint64_t least_of(size_t bucket) {  // the smallest staleness that is counted in it
    return bucket < kExact ? bucket : uint64_t{1} << (bucket - kExact + 5);
  }

  struct Counts {
    uint64_t steps = 0;       // that were finished, whether something was applied or not
    uint64_t begun = 0;       // updates that began to be applied
    uint64_t applied = 0;     // updates that were
    uint64_t non_finite = 0;  // gradients that were not finite
    uint64_t skipped = 0;     // those of them that were not applied
    uint64_t copied = 0;      // bytes of weights and gradients that were copied for a framework
    uint64_t losses = 0;      // that were noted
    double loss_sum = 0;
    double recent_loss = 0;  // with a weight that halves about every 70
    std::array<uint64_t, kBuckets> staleness{};
  };

  // Error kOutOfMemory, kSystem (descriptors).
  static HogwildBoard make(size_t workers, bool shared);
  // Takes a dup of `fd`. Error kInvalidArgument if it is no board.
  static HogwildBoard open(int fd);

  int fd() const;  // of a shared one, which keeps it open; else -1
  size_t workers() const;

  // A run of at most `steps` steps begins; the optimizer's state has seen `updates` of them.
  // REQUIRED: no worker is at work.
  void begin(uint64_t steps, uint64_t updates) const;
  // Whether one more step may begin; counts it if so.
  bool take() const;
  // The last take() came to nothing: no batch was there for it.
  void untake() const;
  void stop() const;
  bool stopped() const;
  // Updates that the optimizer's state has seen; counts `n` more and returns how many it were.
  uint64_t advance(uint64_t n) const;
  uint64_t updates() const;

  Counts counts(size_t worker) const;

  // The writer of a worker's counters.
  void note_begun(size_t worker, uint64_t n) const;
  void note_applied(size_t worker, uint64_t n, uint64_t staleness) const;
  void note_non_finite(size_t worker, bool skipped) const;
  void note_copied(size_t worker, uint64_t bytes) const;
  void note_loss(size_t worker, double loss) const;
  void note_step(size_t worker) const;

 private:
  struct Memory;
  struct Head;
  struct Row;
  explicit HogwildBoard(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  Head& head() const;
  Row& row(size_t worker) const;

  std::shared_ptr<Memory> memory_;
};

}  // namespace penstock::train
