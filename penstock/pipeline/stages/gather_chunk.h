#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// The places of the parts of a StreamChunk.
struct StreamChunkParts {
  static constexpr uint64_t kHeadBytes = 7 * sizeof(uint64_t);

  uint64_t spec_bytes = 0, block_bytes = 0, origins_bytes = 0;

  uint64_t block_at() const { return (kHeadBytes + spec_bytes + 63) / 64 * 64; }
  uint64_t origins_at() const { return block_at() + (block_bytes + 63) / 64 * 64; }
  uint64_t bytes() const { return origins_at() + origins_bytes; }
};

// Collects elements of a stream until there are enough for a stream chunk. Large elements of one
// size are written to their places in the stream chunk at once. One thread.
class GatherChunk {
 public:
  // Places count what was gathered: elements that are alive, and failures in place of an element.
  struct Placed {
    uint64_t place;
    Failure failure;
  };
  struct Gathered {
    uint64_t rows = 0;             // alive, in elements()
    bool over = false;             // the stream ended after them
    std::vector<Placed> left_out;  // skipped elements, each before its place; ascending
    std::vector<Placed> failed;    // Failures::kInPlace: failed elements at their places; ascending
    std::optional<Failure> failure;  // Failures::kEnd: an error to raise, after those rows
    uint64_t places() const { return rows + failed.size(); }
  };
  // Elements that fail and are not skipped:
  enum class Failures : uint8_t {
    kEnd,      // the first one ends the chunk. To read it again, load a state before it
    kInPlace,  // take the place of an element; later elements follow
  };

  // `context`'s scratch outlives this, and keeps the gathered elements until it is emptied; its
  // owner does that between stream chunks. `arena`: the place of stream chunks, of at most
  // `max_space` bytes if one is allocated before all elements are there; nullptr: not known. The
  // arena outlives this.
  GatherChunk(const Context& context, const Streamed& stage, Allocator* arena = nullptr,
              uint64_t max_space = 0);
  ~GatherChunk() { drop_space(); }

  struct Wanted {
    uint64_t least = 1, most = 1;  // places; fewer than `least` only at the end
    uint64_t ordinal = 0;          // of the next element that is alive
    Failures failures = Failures::kEnd;
  };
  Gathered gather(ElementReader& stream, const Wanted& wanted);
  // Releases the failures of the last chunk, and space that was not taken.
  void release() {
    chunk_.reset(nullptr, 0);
    drop_space();
  }
  const Collector& elements() const { return elements_; }
  const Origins& origins() const { return origins_; }  // of elements()
  // Memory of the arena, which the caller releases, where all elements() lie already in the block
  // of a stream chunk with those parts; nullptr: there is none.
  std::byte* take_space(const StreamChunkParts& parts);
  void drop_space();
  // On destruction, drops space that was not taken.
  class Unused {
   public:
    explicit Unused(GatherChunk& gathered) : gathered_(gathered) {}
    ~Unused() { gathered_.drop_space(); }
    Unused(const Unused&) = delete;
    Unused& operator=(const Unused&) = delete;

   private:
    GatherChunk& gathered_;
  };
  uint64_t space_bytes() const { return space_.memory == nullptr ? 0 : space_.parts.bytes(); }

 private:
  uint64_t sort_out(const Wanted& wanted, uint32_t count, Gathered& gathered);
  void own(Chunk& in, uint32_t row, Chunk& out, uint32_t to);
  void make_space(const SpecRef& spec, uint64_t rows);

  uint32_t so_many(uint64_t wanted) const;

  Scratch& scratch_;
  const StreamMemory* memory_;
  SpecRef spec_;
  Chunk chunk_;
  Collector elements_;
  Origins origins_;
  std::vector<uint64_t> positions_;
  uint64_t all_rows_ = 0, all_bytes_ = 0;  // that were gathered so far

  Allocator* const arena_;
  const uint64_t max_space_;
  struct Space {
    std::byte* memory = nullptr;  // nullptr: there is none
    SpecRef spec;
    StreamChunkParts parts;
    BlockLayout layout;
    uint64_t rows = 0;  // that are in it
  };
  Space space_;
};

}  // namespace penstock
