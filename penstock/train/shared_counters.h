#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "penstock/base/os.h"

namespace penstock::train {

// What the workers of one Hogwild share besides weights: the number of steps that may still begin,
// a stop flag, the number of updates that the optimizer's state has seen, and counters for each
// worker. A handle: copies refer to the same memory.
//
// With `shared` the memory is a memfd, for worker processes. After a process was killed its
// counters are intact, since each is one word; `begun` against `applied` shows whether it was
// within an update.
//
// Threads: any; each worker's counters have one writer at a time.
class SharedCounters {
 public:
  // Buckets of staleness: exact below 32, then one for each power of two.
  static constexpr size_t kExact = 32;
  static constexpr size_t kBuckets = kExact + 59;
  static size_t bucket(uint64_t staleness) {
    return staleness < kExact ? staleness : kExact + std::bit_width(staleness) - 6;
  }
  static uint64_t bucket_min(size_t bucket) {  // the smallest staleness in the bucket
    return bucket < kExact ? bucket : uint64_t{1} << (bucket - kExact + 5);
  }

  struct Counts {
    uint64_t steps = 0;       // finished steps, with or without an update
    uint64_t begun = 0;       // updates that were begun
    uint64_t applied = 0;     // updates that were completed
    uint64_t non_finite = 0;  // gradients with a NaN or an infinity
    uint64_t skipped = 0;     // of these, gradients that were not applied
    uint64_t copied = 0;      // bytes of weights and gradients copied for a framework
    uint64_t losses = 0;      // number of noted losses
    double loss_sum = 0;
    double recent_loss = 0;  // moving average; a loss's weight halves about every 70
    std::array<uint64_t, kBuckets> staleness{};
  };

  // Error kOutOfMemory, kSystem (descriptors).
  static SharedCounters make(size_t workers, bool shared);
  // Duplicates `fd`. Error kInvalidArgument: it has no counters.
  static SharedCounters open(int fd);

  int fd() const;  // of shared counters, which keep it open; else -1
  size_t workers() const;

  // Begins a run of at most `steps` steps, after `updates` updates of the optimizer's state.
  // REQUIRED: no worker runs.
  void begin(uint64_t steps, uint64_t updates) const;
  // Claims one step of the run. False: none is left, or stop() was called.
  bool claim_step() const;
  // Returns the last claimed step: there was no batch for it.
  void return_step() const;
  void stop() const;
  bool stopped() const;
  // Adds `n` to the updates that the optimizer's state has seen. Returns their number before.
  uint64_t add_updates(uint64_t n) const;
  uint64_t updates() const;

  Counts counts(size_t worker) const;

  // For the writer of a worker's counters:
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
  explicit SharedCounters(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  Head& head() const;
  Row& row(size_t worker) const;

  std::shared_ptr<Memory> memory_;
};

}  // namespace penstock::train
