#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Where the parts of a Parcel lie.
struct ParcelParts {
  static constexpr uint64_t kHeadBytes = 7 * sizeof(uint64_t);

  uint64_t spec_bytes = 0, block_bytes = 0, origins_bytes = 0;

  uint64_t block_at() const { return (kHeadBytes + spec_bytes + 63) / 64 * 64; }
  uint64_t origins_at() const { return block_at() + (block_bytes + 63) / 64 * 64; }
  uint64_t bytes() const { return origins_at() + origins_bytes; }
};

// Collects elements of a stream until there are enough for a parcel. Where these are large and of
// one size each is written to its place in the parcel at once. One thread.
class GatherParcel {
 public:
  // Places count what was gathered: elements that are alive, and failures that stand for one.
  struct Placed {
    uint64_t place;
    Failure failure;
  };
  struct Gathered {
    uint64_t rows = 0;               // alive, in elements()
    bool over = false;               // the stream ended behind them
    std::vector<Placed> left_out;    // on the way to that place; ascending
    std::vector<Placed> failed;      // Failures::kInPlace: what failed is there; ascending
    std::optional<Failure> failure;  // kEnd: behind those rows; it is to be raised
    uint64_t places() const { return rows + failed.size(); }
  };
  // What becomes of those that fail and are not left out.
  enum class Failures : uint8_t {
    kEnd,      // the first one ends it; it and what is behind it may be asked for again only
               // from a place before it
    kInPlace,  // they stand for elements: nothing behind them is lost
  };

  // `context`'s scratch, which outlives this, keeps what was gathered until it is emptied; its
  // owner does that between parcels.
  // `arena`: where parcels are to lie, of `most_room` bytes if that is made before all elements are
  // there; nullptr: not known. It outlives this.
  GatherParcel(const Context& context, const Streamed& stage, Allocator* arena = nullptr,
               uint64_t most_room = 0);
  ~GatherParcel() { drop_room(); }

  struct Wanted {
    uint64_t least = 1, most = 1;  // places; fewer than `least` only at the end
    uint64_t ordinal = 0;          // of the next element that is alive
    Failures failures = Failures::kEnd;
  };
  Gathered gather(StreamReader& stream, const Wanted& wanted);
  // Lets go of what failed in the last chunk, and of room that nobody took.
  void let_go() {
    chunk_.reset(nullptr, 0);
    drop_room();
  }
  const Collector& elements() const { return elements_; }
  const Origins& origins() const { return origins_; }  // of elements()
  // Memory of the arena, which the caller releases, where all elements() are in the block of a
  // parcel that has those parts already; nullptr: there is none.
  std::byte* take_room(const ParcelParts& parts);
  void drop_room();
  // Drops room that nobody took until its end.
  class Unused {
   public:
    explicit Unused(GatherParcel& gathered) : gathered_(gathered) {}
    ~Unused() { gathered_.drop_room(); }
    Unused(const Unused&) = delete;
    Unused& operator=(const Unused&) = delete;

   private:
    GatherParcel& gathered_;
  };
  uint64_t room_bytes() const { return room_.memory == nullptr ? 0 : room_.parts.bytes(); }

 private:
  uint64_t sort_out(const Wanted& wanted, uint32_t count, Gathered& gathered);
  void own(Chunk& in, uint32_t row, Chunk& out, uint32_t to);
  void make_room(const SpecRef& spec, uint64_t rows);

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
  const uint64_t most_room_;
  struct Room {
    std::byte* memory = nullptr;  // nullptr: there is none
    SpecRef spec;
    ParcelParts parts;
    BlockLayout layout;
    uint64_t rows = 0;  // that are in it
  };
  Room room_;
};

}  // namespace penstock
