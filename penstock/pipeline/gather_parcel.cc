#include "penstock/pipeline/gather_parcel.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {

// Whatever differs in length is ragged to a parcel: it is not for it to say what a batch may be.
GatherParcel::GatherParcel(Scratch& scratch, const Streamed& stage)
    : scratch_(scratch),
      spec_(stage.spec()),
      chunk_(scratch),
      elements_(scratch, Collector::Lengths::kAny, nullptr) {}

GatherParcel::Gathered GatherParcel::gather(StreamReader& stream, uint64_t wanted, uint64_t ordinal,
                                            bool skip) {
  Gathered gathered;
  elements_.begin(spec_);
  while (gathered.rows < wanted && !gathered.failure) {
    const auto most =
        static_cast<uint32_t>(std::min<uint64_t>(wanted - gathered.rows, Chunk::kRows));
    const uint32_t count = stream.next(most, chunk_);
    if (count == 0) {
      gathered.over = true;
      break;
    }
    uint32_t good = count;  // rows in front of a failure that is to be raised
    std::sort(chunk_.failures().begin(), chunk_.failures().end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [row, failure] : chunk_.failures()) {
      if (failure.fatal || !(failure.forgiven || skip)) {
        good = row;
        gathered.failure = std::move(failure);
        break;
      }
      gathered.forgiven.push_back(std::move(failure));
    }
    for (auto& [row, lost] : chunk_.notes()) {
      if (row < good) gathered.forgiven.push_back(std::move(lost));
    }
    const uint64_t alive =
        good == Chunk::kRows ? chunk_.alive() : chunk_.alive() & ((uint64_t{1} << good) - 1);
    const auto rows = static_cast<uint32_t>(__builtin_popcountll(alive));
    if (rows == 0) continue;
    positions_.resize(rows);
    std::iota(positions_.begin(), positions_.end(), ordinal + gathered.rows);
    Chunk& out = elements_.add(positions_);
    uint32_t to = 0;
    for (uint64_t left = alive; left != 0; left &= left - 1) {
      own(chunk_, static_cast<uint32_t>(__builtin_ctzll(left)), out, to++);
    }
    gathered.rows += rows;
  }
  if (gathered.rows != 0) elements_.settle();
  return gathered;
}

// The row is the chunk's until the stream is asked again: so it is copied.
void GatherParcel::own(Chunk& in, uint32_t row, Chunk& out, uint32_t to) {
  if (!out.settle(in.spec())) {
    throw Error(Code::kInvalidArgument, "element",
                "elements of one stream must be alike: there are " + out.spec()->to_string() +
                    " and " + in.spec()->to_string());
  }
  for (size_t leaf = 0; leaf < in.spec()->leaves().size(); ++leaf) {
    std::span<const int64_t> shape = in.shape(leaf, row);
    uint64_t bytes = size_of(in.spec()->leaves()[leaf].dtype);
    for (int64_t length : shape) bytes *= static_cast<uint64_t>(length);
    std::byte* copy = scratch_.take(bytes);
    if (bytes != 0) std::memcpy(copy, in.at(leaf, row), bytes);
    out.view(leaf, to, copy, shape);
  }
}

}  // namespace penstock
