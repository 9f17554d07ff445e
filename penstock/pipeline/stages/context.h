#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/scratch.h"
#include "penstock/pipeline/element/source.h"
#include "penstock/pipeline/element/stream_memory.h"

namespace penstock {

// Where a stage's elements are: which epoch its ticket is of, and where a shard of it begins.
struct At {
  uint64_t epoch = 0;
  uint64_t base = 0;  // elements that earlier runs at other world sizes used (see shard)
};

struct StreamChunk;
class ParallelMaps;
class StageClock;
class StageNumbers;

// A worker's environment for the readers of its chain; outlives them. One thread.
struct Context {
  // Watches over the current ticket. Rows are counted from the ticket's first; `call` identifies
  // one of the functions that make the row (Keys::call).
  class Watch {
   public:
    virtual ~Watch() = default;
    // Called before user code runs for a row. False: the ticket was taken away; stop working on it.
    virtual bool progress(uint32_t row, uint32_t call) = 0;
    // The row's error, if this call timed out or killed its worker and must not be tried again;
    // null otherwise.
    virtual std::exception_ptr poisoned(uint32_t row, uint32_t call) = 0;
    // User code threw. `again`: it will be retried.
    virtual void threw(bool again) = 0;
    // User code threw an interrupt (Ctrl-C) and not a failure of an element. True: this is the
    // thread to interrupt, so the exception is rethrown, and the ticket fails with it at once.
    virtual bool interrupted(const std::exception_ptr&) { return false; }
  };

  Scratch& scratch;  // emptied between granules
  uint64_t seed = 0;
  uint32_t worker = 0;
  uint32_t retries = 0;  // of user code
  Watch* watch = nullptr;
  // Counts the time of each stage, and the stages' numbers; nullptr: time is not counted.
  StageClock* clock = nullptr;
  const StageNumbers* stages = nullptr;
  // In a stream reader: costly elements are made by workers there; nullptr: by the readers.
  const ParallelMaps* parallel_maps = nullptr;
  // Failed elements are skipped where elements are stacked (the Loader's on_error). Fatal errors
  // are raised all the same.
  bool skip = false;
  // In a stream reader: counts the memory that the stream holds; nullptr: memory is not counted.
  StreamMemory* memory = nullptr;
  // The outermost plan's seed, in a plan that a function opened, which has a seed of its own.
  std::optional<uint64_t> build_seed = std::nullopt;

  const StreamChunk* stream_chunk = nullptr;  // in a plan with a stream: the ticket's elements

  // The ticket's row that the first row of a chunk is. Where a stage makes one element of many, all
  // of these count as that one row.
  uint32_t first_row = 0;
  bool one_row = false;
  uint32_t row(uint32_t of_chunk) const { return one_row ? first_row : first_row + of_chunk; }

  // For a stage of a stream that reads on without output, and must notice that the loader was
  // closed. Error kClosed.
  void check_open() const {
    if (watch == nullptr || watch->progress(0, 0)) return;
    throw Error(Code::kClosed, "stream", "the loader was closed");
  }

  // Bytes that a stage makes, or pulls of an input, at a time, but at least one element.
  uint64_t chunk_bytes() const {
    return memory == nullptr ? StreamMemory::kMaxChunk : memory->chunk_bytes();
  }

  // The same with other scratch memory, and without a ticket.
  Context over(Scratch& own) const {
    own.count_in(memory);
    return {own,    seed,          worker, retries, watch,     clock,
            stages, parallel_maps, skip,   memory,  build_seed};
  }
  // The seed of the whole plan.
  uint64_t outermost_seed() const { return build_seed.value_or(seed); }
};

// The addresses of a chunk's elements in one stage, which key their random numbers.
class Keys {
 public:
  Keys(const Context& context, uint64_t epoch, std::span<const uint64_t> positions,
       uint32_t operation)
      : context_(context), epoch_(epoch), positions_(positions), operation_(operation) {}

  uint64_t epoch() const { return epoch_; }
  uint32_t size() const { return static_cast<uint32_t>(positions_.size()); }
  // The j-th element's position in the stage's own input.
  uint64_t position(uint32_t j) const { return positions_[j]; }
  uint32_t operation() const { return operation_; }
  // Identifies the j-th element's call among those of its ticket; never 0.
  uint32_t call(uint32_t j) const {
    uint64_t key = (epoch_ * 0x9e3779b97f4a7c15 + positions_[j]) * 0xbf58476d1ce4e5b9 + operation_;
    key = (key ^ key >> 31) * 0x94d049bb133111eb;
    return static_cast<uint32_t>(key >> 32) | 1;
  }
  uint64_t seed() const { return context_.seed; }
  // Its rng() is keyed (seed, epoch, position, operation).
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
