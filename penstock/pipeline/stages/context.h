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

struct Parcel;
class Sections;
class StageClock;
class StageNumbers;

// What a worker gives the readers of its chain; outlives them. One thread.
struct Context {
  // Who watches over the ticket in hand. Rows are counted from the ticket's first; `call` is which
  // of the functions that make the row (Keys::call).
  class Watch {
   public:
    virtual ~Watch() = default;
    // Before user code runs for a row. False: the ticket was taken away, so what is made of it is
    // for nothing.
    virtual bool progress(uint32_t row, uint32_t call) = 0;
    // What the row fails with if this call timed out, or killed its worker, and is not to be tried
    // again; null: it is not so.
    virtual std::exception_ptr poisoned(uint32_t row, uint32_t call) = 0;
    // User code threw, and is tried again or not.
    virtual void threw(bool again) = 0;
    // It threw what is no failure of an element's (Ctrl-C), in the thread of whoever is to hear it.
    // True: it is to be thrown on, and the ticket fails with it at once.
    virtual bool interrupted(const std::exception_ptr&) { return false; }
  };

  Scratch& scratch;  // emptied between granules
  uint64_t seed = 0;
  uint32_t worker = 0;
  uint32_t retries = 0;  // times that user code is tried again
  Watch* watch = nullptr;
  // Where the time of each stage is counted, and which is which; nullptr: it is not.
  StageClock* clock = nullptr;
  const StageNumbers* stages = nullptr;
  // Of a cursor: where workers make what is costly; nullptr: its readers make everything.
  const Sections* sections = nullptr;
  // What fails is left out by whoever stacks elements (the feed's on_error): not what is fatal.
  bool skip = false;
  // Of a cursor: where what its stream holds is counted; nullptr: it is not.
  StreamMemory* memory = nullptr;
  // Of a plan that a function opened, whose seed is its own: the outermost plan's.
  std::optional<uint64_t> build_seed = std::nullopt;

  const Parcel* parcel = nullptr;  // of a plan with a stream: the ticket's elements

  // Which row of the ticket a chunk's first one is. Where a stage makes one element of many, all of
  // those stand for that one.
  uint32_t first_row = 0;
  bool one_row = false;
  uint32_t row(uint32_t of_chunk) const { return one_row ? first_row : first_row + of_chunk; }

  // Of a stream's stage that goes on without passing anything on: nobody else would notice that the
  // loader was closed. Error kClosed.
  void check_open() const {
    if (watch == nullptr || watch->progress(0, 0)) return;
    throw Error(Code::kClosed, "stream", "the loader was closed");
  }

  // Bytes that a stage makes, or pulls of an input, at a time, or else one element.
  uint64_t chunk_bytes() const {
    return memory == nullptr ? StreamMemory::kMostChunk : memory->chunk_bytes();
  }

  // The same over memory of its own; without a ticket.
  Context over(Scratch& own) const {
    own.count_in(memory);
    return {own, seed, worker, retries, watch, clock, stages, sections, skip, memory, build_seed};
  }
  // Of the whole plan.
  uint64_t outermost_seed() const { return build_seed.value_or(seed); }
};

// The addresses of a chunk's elements in one stage: what their random numbers are keyed by.
class Keys {
 public:
  Keys(const Context& context, uint64_t epoch, std::span<const uint64_t> positions,
       uint32_t operation)
      : context_(context), epoch_(epoch), positions_(positions), operation_(operation) {}

  uint64_t epoch() const { return epoch_; }
  uint32_t size() const { return static_cast<uint32_t>(positions_.size()); }
  // Of the j-th element, in the stage's own input.
  uint64_t position(uint32_t j) const { return positions_[j]; }
  uint32_t operation() const { return operation_; }
  // The j-th element's call, told from others of its ticket; never 0.
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
