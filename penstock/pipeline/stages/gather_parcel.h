#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Collects elements of a stream until there are enough for a parcel. One thread.
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
    std::vector<Placed> forgiven;    // left out on the way to that place; ascending
    std::vector<Placed> failed;      // Failures::kInPlace: what failed is there; ascending
    std::optional<Failure> failure;  // kEnd: behind those rows; it is to be raised
    uint64_t places() const { return rows + failed.size(); }
  };
  // What becomes of those that nobody has forgiven.
  enum class Failures : uint8_t {
    kEnd,      // the first one ends it; those that are fatal, and what is behind it, may be asked
               // for again only from a place before it
    kInPlace,  // they stand for elements: nothing behind them is lost
  };

  // `context`'s scratch, which outlives this, keeps what was gathered until it is emptied; its
  // owner does that between parcels.
  GatherParcel(const Context& context, const Streamed& stage);

  struct Wanted {
    uint64_t least = 1, most = 1;  // places; fewer than `least` only at the end
    uint64_t ordinal = 0;          // of the next element that is alive
    Failures failures = Failures::kEnd;
    bool skip = false;  // all are forgiven but the fatal ones
  };
  Gathered gather(StreamReader& stream, const Wanted& wanted);
  // Lets go of what failed in the last chunk.
  void let_go() { chunk_.reset(nullptr, 0); }
  const Collector& elements() const { return elements_; }
  const Origins& origins() const { return origins_; }  // of elements()

 private:
  uint64_t sort_out(const Wanted& wanted, uint32_t count, Gathered& gathered);
  void own(Chunk& in, uint32_t row, Chunk& out, uint32_t to);

  uint32_t so_many(uint64_t wanted) const;

  Scratch& scratch_;
  const StreamMemory* memory_;
  SpecRef spec_;
  Chunk chunk_;
  Collector elements_;
  Origins origins_;
  std::vector<uint64_t> positions_;
  uint64_t all_rows_ = 0, all_bytes_ = 0;  // that were gathered so far
};

}  // namespace penstock
