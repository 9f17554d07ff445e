#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// The offsets and sizes of the parts of a StreamChunk.
struct StreamChunkParts {
  static constexpr uint64_t kHeadBytes = 7 * sizeof(uint64_t);

  uint64_t spec_bytes = 0, block_bytes = 0, origins_bytes = 0;

  uint64_t block_at() const { return (kHeadBytes + spec_bytes + 63) / 64 * 64; }
  uint64_t origins_at() const { return block_at() + (block_bytes + 63) / 64 * 64; }
  uint64_t bytes() const { return origins_at() + origins_bytes; }
};

// Collects elements of a stream for a stream chunk. One thread.
//
// - Large elements that lie in the arena, because a worker made them there, stay where they are:
//   the stream chunk gets a lease on each (LeasedRows).
// - Other large elements of equal size are written straight to their places in the stream chunk.
// - The rest is copied, and copied again into the stream chunk.
class GatherChunk {
 public:
  // `place` counts what was gathered: elements that are alive, and failures that take the place of
  // an element.
  struct Placed {
    uint64_t place;
    Failure failure;
  };
  struct Gathered {
    uint64_t rows = 0;             // alive, in elements()
    bool over = false;             // the stream ended after these rows
    std::vector<Placed> left_out;  // skipped elements, each reported before its place; ascending
    // For Failures::kInPlace: failed elements at their places; ascending.
    std::vector<Placed> failed;
    std::optional<Failure> failure;  // for Failures::kEnd: the error to raise after these rows
    uint64_t places() const { return rows + failed.size(); }
  };
  // The handling of failed elements that are not skipped.
  enum class Failures : uint8_t {
    kEnd,      // the first one ends the chunk. To read it again, load a state before it
    kInPlace,  // take the place of an element; later elements follow
  };

  // `context`'s scratch must outlive this. It holds the gathered elements until it is emptied,
  // which its owner does between stream chunks. `arena`: where stream chunks are allocated;
  // nullptr: unknown. It must outlive this. `max_space`: the largest chunk in bytes to allocate
  // before all its elements are made. `on_space`: called with the bytes of a chunk, as far as they
  // are known, before all its elements are made.
  GatherChunk(const Context& context, const Streamed& stage, Allocator* arena = nullptr,
              uint64_t max_space = 0, std::function<void(uint64_t bytes)> on_space = nullptr);
  ~GatherChunk() { drop_space(); }

  struct Wanted {
    uint64_t least = 1, most = 1;  // in places; fewer than `least` only at the end of the stream
    uint64_t ordinal = 0;          // of the next element that is alive
    Failures failures = Failures::kEnd;
  };
  Gathered gather(ElementReader& stream, const Wanted& wanted);
  // Releases the failures of the last chunk, and unused space.
  void release() {
    chunk_.reset(nullptr, 0);
    drop_space();
  }
  const Collector& elements() const { return elements_; }
  const Origins& origins() const { return origins_; }  // of elements()
  Allocator* arena() const { return arena_; }
  // Of the blocks that elements() lie in; none if they were copied.
  std::span<const Ref> leases() const { return leases_; }
  uint64_t leased_bytes() const { return leased_bytes_; }  // of these blocks
  // The leases belong to a stream chunk now.
  void hand_over_leases() { leases_.clear(); }
  // Counts bytes of elements that were copied, in the context's StreamMemory.
  void count_copy(uint64_t bytes) {
    if (memory_ != nullptr) memory_->count_copy(bytes);
  }
  // Memory of the arena that holds all elements() in the block of a stream chunk with these parts.
  // The caller takes ownership. nullptr: there is none.
  std::byte* take_space(const StreamChunkParts& parts);
  // Releases memory and leases that no stream chunk took.
  void drop_space();
  // Calls drop_space() on destruction.
  class Unused {
   public:
    explicit Unused(GatherChunk& gathered) : gathered_(gathered) {}
    ~Unused() { gathered_.drop_space(); }
    Unused(const Unused&) = delete;
    Unused& operator=(const Unused&) = delete;

   private:
    GatherChunk& gathered_;
  };

 private:
  uint64_t take_losses(const Wanted& wanted, uint32_t count, Gathered& gathered);
  void own(Chunk& in, uint32_t row, Chunk& out, uint32_t to);
  bool may_lease(const Chunk& in, uint32_t row) const;
  bool lease(const std::byte* values);
  void announce(uint64_t bytes);
  void make_space(const SpecRef& spec, uint64_t rows);

  uint32_t rows_to_pull(uint64_t wanted) const;

  Scratch& scratch_;
  StreamMemory* memory_;
  SpecRef spec_;
  Chunk chunk_;
  Collector elements_;
  Origins origins_;
  std::vector<uint64_t> positions_;
  uint64_t all_rows_ = 0, all_bytes_ = 0;  // sums over all elements gathered so far

  Allocator* const arena_;
  const uint64_t max_space_;
  const std::function<void(uint64_t bytes)> on_space_;
  struct Space {
    std::byte* memory = nullptr;  // nullptr: no space
    SpecRef spec;
    StreamChunkParts parts;
    BlockLayout layout;
    uint64_t rows = 0;  // rows written so far
  };
  Space space_;

  std::vector<Ref> leases_;  // only while there is no space_
  uint64_t leased_bytes_ = 0;
  const std::byte* leased_begin_ = nullptr;  // the block of the last lease
  const std::byte* leased_end_ = nullptr;
  uint64_t wanted_rows_ = 0;  // of the current chunk, at most
  uint64_t announced_ = 0;    // its bytes, as on_space_ has them
};

}  // namespace penstock
