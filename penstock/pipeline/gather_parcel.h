#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/pipeline/collate.h"
#include "penstock/pipeline/stage.h"

namespace penstock {

// Collects elements of a stream until there are enough for a parcel. One thread.
class GatherParcel {
 public:
  struct Gathered {
    uint64_t rows = 0;               // alive, in elements()
    bool over = false;               // the stream ended behind them
    std::vector<Failure> forgiven;   // left out on the way
    std::optional<Failure> failure;  // behind those rows: it is to be raised
  };

  // `scratch` keeps what was gathered until it is emptied; its owner does that between parcels.
  GatherParcel(Scratch& scratch, const Streamed& stage);

  // `skip`: every failure is forgiven.
  Gathered gather(StreamReader& stream, uint64_t wanted, uint64_t ordinal, bool skip = false);
  const Collector& elements() const { return elements_; }

 private:
  void own(Chunk& in, uint32_t row, Chunk& out, uint32_t to);

  Scratch& scratch_;
  SpecRef spec_;
  Chunk chunk_;
  Collector elements_;
  std::vector<uint64_t> positions_;
};

}  // namespace penstock
