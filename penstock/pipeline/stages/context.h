#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/scratch.h"
#include "penstock/pipeline/element/source.h"

namespace penstock {

// The epoch of a ticket, and where its shard begins. A stage finds its elements by these and a
// position.
struct At {
  uint64_t epoch = 0;
  uint64_t base = 0;  // elements that earlier runs with other world sizes used (see shard)
};

struct StreamChunk;
class ParallelMaps;
class StageClock;
class StageNumbers;

// The environment of a worker's chain; outlives the readers of the chain. One thread.
struct Context {
  // Supervises the calls of user code for the current ticket. `row` counts from the ticket's first
  // row; `call` identifies one of the functions that make the row (Keys::call).
  class Watch {
   public:
    virtual ~Watch() = default;
    // Call it before user code runs for a row. False: the ticket was withdrawn; stop working on it.
    virtual bool progress(uint32_t row, uint32_t call) = 0;
    // The row's error if this call timed out or killed its worker before and must not be tried
    // again; else null.
    virtual std::exception_ptr poisoned(uint32_t row, uint32_t call) = 0;
    // User code threw an exception. `again`: the call will be retried.
    virtual void on_exception(bool again) = 0;
    // User code threw an interrupt (Ctrl-C), which is not a failure of the element. True: this
    // thread is the one to interrupt, so the caller rethrows the exception, and the ticket fails at
    // once.
    virtual bool interrupted(const std::exception_ptr&) { return false; }
  };

  Scratch& scratch;  // emptied between granules
  uint64_t seed = 0;
  uint32_t worker = 0;
  uint32_t retries = 0;  // of user code
  Watch* watch = nullptr;
  // The clock counts the time of each stage by its number in `stages`. nullptr: not counted.
  StageClock* clock = nullptr;
  const StageNumbers* stages = nullptr;
  // In a stream reader: workers make costly elements for these maps; nullptr: the reader makes
  // them.
  ParallelMaps* parallel_maps = nullptr;
  // Failed elements are skipped where elements are stacked (the Loader's on_error). Fatal errors
  // are raised all the same.
  bool skip = false;
  // In a stream reader: counts the memory that the stream holds; nullptr: not counted.
  StreamMemory* memory = nullptr;
  // Set in a plan that a user function opened: the seed of the outermost plan. `seed` is then the
  // opened plan's own seed.
  std::optional<uint64_t> build_seed = std::nullopt;

  const StreamChunk* stream_chunk = nullptr;  // in a plan with a stream: the elements of the ticket

  // The ticket's row for row 0 of a chunk. If a stage makes one element of many input elements, all
  // of them count as that one row.
  uint32_t first_row = 0;
  bool one_row = false;
  uint32_t row(uint32_t of_chunk) const { return one_row ? first_row : first_row + of_chunk; }

  // For a stream stage that reads on without output: detects that the loader was closed. Error
  // kClosed.
  void check_open() const {
    if (watch == nullptr || watch->progress(0, 0)) return;
    throw Error(Code::kClosed, "stream", "the loader was closed");
  }

  // The bytes that a stage makes, or pulls from an input, at a time. At least one element is made.
  uint64_t chunk_bytes() const {
    return memory == nullptr ? StreamMemory::kMaxChunk : memory->chunk_bytes();
  }

  // A copy with other scratch memory and without a ticket.
  Context over(Scratch& own) const {
    own.count_in(memory);
    return {own,    seed,          worker, retries, watch,     clock,
            stages, parallel_maps, skip,   memory,  build_seed};
  }
  // The seed of the whole plan.
  uint64_t outermost_seed() const { return build_seed.value_or(seed); }
};

// Identifies the elements of a chunk in one stage. Their random numbers are keyed by this.
class Keys {
 public:
  Keys(const Context& context, uint64_t epoch, std::span<const uint64_t> positions,
       uint32_t operation)
      : context_(context), epoch_(epoch), positions_(positions), operation_(operation) {}

  uint64_t epoch() const { return epoch_; }
  uint32_t size() const { return static_cast<uint32_t>(positions_.size()); }
  // Position of the j-th element in the stage's input.
  uint64_t position(uint32_t j) const { return positions_[j]; }
  uint32_t operation() const { return operation_; }
  // Identifies the j-th element's call among the calls of its ticket; never 0.
  uint32_t call(uint32_t j) const {
    uint64_t key = (epoch_ * 0x9e3779b97f4a7c15 + positions_[j]) * 0xbf58476d1ce4e5b9 + operation_;
    key = (key ^ key >> 31) * 0x94d049bb133111eb;
    return static_cast<uint32_t>(key >> 32) | 1;
  }
  uint64_t seed() const { return context_.seed; }
  // rng() of the result is keyed by (seed, epoch, position, operation).
  SampleContext sample(uint32_t j) const {
    return {{context_.seed, epoch_, positions_[j], operation_}, context_.worker};
  }

 private:
  const Context& context_;
  uint64_t epoch_;
  std::span<const uint64_t> positions_;
  uint32_t operation_;
};

}  // namespace penstock
