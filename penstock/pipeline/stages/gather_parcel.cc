#include "penstock/pipeline/stages/gather_parcel.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {
// Smaller elements are copied twice in no time; and room is not made for many more than may come.
constexpr uint64_t kLeastElement = 32 << 10;
constexpr uint64_t kMostRoom = 64 << 20;
// Where records come from is told in few bytes each; if not, their elements are copied.
uint64_t room_for_origins(uint64_t rows) { return 4096 + 16 * rows; }
}  // namespace

// Whatever differs in length is ragged to a parcel: it is not for it to say what a batch may be.
GatherParcel::GatherParcel(const Context& context, const Streamed& stage, Allocator* arena,
                           uint64_t most_room)
    : scratch_(context.scratch),
      memory_(context.memory),
      spec_(stage.spec()),
      chunk_(scratch_),
      elements_(scratch_, Collector::Lengths::kAny, nullptr),
      arena_(arena),
      most_room_(std::min(most_room, kMostRoom)) {}

// What the stream gives at a time is there beside its copy: so it is little.
uint32_t GatherParcel::so_many(uint64_t wanted) const {
  wanted = std::min<uint64_t>(wanted, Chunk::kRows);
  if (memory_ == nullptr) return static_cast<uint32_t>(wanted);
  if (all_rows_ == 0 && (spec_ == nullptr || !spec_->fixed())) return 1;  // how large are they?
  const uint64_t bytes = all_rows_ == 0 ? spec_->fixed_bytes() : all_bytes_ / all_rows_;
  const uint64_t fit = memory_->chunk_bytes() / std::max<uint64_t>(bytes, 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(fit, 1, wanted));
}

GatherParcel::Gathered GatherParcel::gather(StreamReader& stream, const Wanted& wanted) {
  Gathered gathered;
  elements_.begin(spec_);
  origins_.clear();
  drop_room();
  // In place, what was left out is told with what comes behind it: so that is looked for, and there
  // is room for it, since what was left out has taken none.
  const auto wants_more = [&] {
    if (gathered.places() < wanted.least) return true;
    return wanted.failures == Failures::kInPlace && gathered.places() < wanted.most &&
           !gathered.left_out.empty() && gathered.left_out.back().place == gathered.places();
  };
  while (!gathered.failure && wants_more()) {
    const uint32_t most = so_many(wanted.most - gathered.places());
    uint32_t count = 0;
    try {
      count = stream.next(most, chunk_);
    } catch (...) {
      if (gathered.rows == 0 || wanted.failures != Failures::kEnd) throw;
      // What was gathered comes first.
      gathered.failure =
          Failure{"stream", wanted.ordinal + gathered.rows, std::current_exception()};
      break;
    }
    if (count == 0) {
      gathered.over = true;
      break;
    }
    const uint64_t before = gathered.rows;
    const uint64_t alive = sort_out(wanted, count, gathered);
    const auto rows = static_cast<uint32_t>(gathered.rows - before);
    if (rows == 0) continue;
    positions_.resize(rows);
    std::iota(positions_.begin(), positions_.end(), wanted.ordinal + before);
    Chunk& out = elements_.add(positions_);
    if (before == 0) make_room(chunk_.spec(), wanted.most);
    uint32_t to = 0;
    for (uint64_t left = alive; left != 0; left &= left - 1) {
      own(chunk_, static_cast<uint32_t>(__builtin_ctzll(left)), out, to++);
    }
    all_rows_ += rows;
  }
  if (gathered.rows != 0) elements_.settle();
  return gathered;
}

// Counts the chunk's rows, and takes what was lost out of it. Which of them are to be had.
uint64_t GatherParcel::sort_out(const Wanted& wanted, uint32_t count, Gathered& gathered) {
  if (chunk_.failures().empty() && chunk_.notes().empty()) {
    gathered.rows += count;
    return chunk_.alive();
  }
  const auto by_row = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::ranges::stable_sort(chunk_.failures(), by_row);
  std::ranges::stable_sort(chunk_.notes(), by_row);
  auto failure = chunk_.failures().begin();
  auto note = chunk_.notes().begin();
  uint64_t alive = 0;
  for (uint32_t row = 0; row < count; ++row) {
    const bool failed = failure != chunk_.failures().end() && failure->first == row;
    const bool left_out = failed && failure->second.settled();
    if (failed && !left_out && wanted.failures == Failures::kEnd) {
      gathered.failure = std::move(failure->second);
      break;
    }
    for (; note != chunk_.notes().end() && note->first == row; ++note) {
      gathered.left_out.push_back({gathered.places(), std::move(note->second)});
    }
    if (!failed) {
      alive |= uint64_t{1} << row;
      ++gathered.rows;
      continue;
    }
    auto& to = left_out ? gathered.left_out : gathered.failed;
    to.push_back({gathered.places(), std::move(failure->second)});
    // More than one may be said of a row.
    while (failure != chunk_.failures().end() && failure->first == row) ++failure;
  }
  return alive;
}

// The row is the chunk's until the stream is asked again: so it is copied.
void GatherParcel::own(Chunk& in, uint32_t row, Chunk& out, uint32_t to) {
  if (!out.settle(in.spec())) {
    throw unlike(*out.spec(), *in.spec());
  }
  origins_.add(in.origin(row));
  const bool placed = room_.memory != nullptr && room_.rows < room_.layout.rows() &&
                      (room_.spec == in.spec() || *room_.spec == *in.spec());
  for (size_t leaf = 0; leaf < in.spec()->leaves().size(); ++leaf) {
    const uint64_t bytes = in.bytes(leaf, row);
    all_bytes_ += bytes;
    std::byte* copy = nullptr;
    if (placed) {
      std::byte* block = room_.memory + room_.parts.block_at();
      copy = room_.layout.fixed().row(block, room_.layout.fixed_place(leaf), room_.rows);
    } else {
      copy = scratch_.take(bytes);
    }
    if (bytes != 0) std::memcpy(copy, in.at(leaf, row), bytes);
    out.view(leaf, to, copy, in.shape(leaf, row));
  }
  if (placed) ++room_.rows;
}

// ---- a parcel's memory -------------------------------------------------------------------------

// For elements like the first, if all of them will be.
void GatherParcel::make_room(const SpecRef& spec, uint64_t rows) {
  if (arena_ == nullptr || spec == nullptr || !spec->fixed()) return;
  const uint64_t each = spec->fixed_bytes();
  if (each < kLeastElement || rows > most_room_ / each) return;
  room_.layout = BlockLayout(*spec, rows);
  room_.parts = {spec->bytes().size(), room_.layout.bytes(), room_for_origins(rows)};
  room_.memory = static_cast<std::byte*>(arena_->allocate(room_.parts.bytes()));
  room_.spec = spec;
}

void GatherParcel::drop_room() {
  if (room_.memory != nullptr) arena_->release(room_.memory);
  room_.memory = nullptr;
  room_.rows = 0;
}

std::byte* GatherParcel::take_room(const ParcelParts& parts) {
  const bool all = room_.memory != nullptr && room_.rows == room_.layout.rows() &&
                   room_.rows == elements_.rows() && *room_.spec == *elements_.spec() &&
                   parts.origins_bytes <= room_.parts.origins_bytes;
  if (!all) return nullptr;
  room_.rows = 0;
  return std::exchange(room_.memory, nullptr);
}

}  // namespace penstock
