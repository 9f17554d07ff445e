#include "penstock/pipeline/stages/gather_chunk.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {
// Smaller elements are copied, since copying them twice costs less than a lease. No space larger
// than kMaxSpace is allocated, because the stream may end early.
constexpr uint64_t kMinElement = 32 << 10;
constexpr uint64_t kMaxSpace = 64 << 20;
// Origins usually take few bytes; if they need more than this, the elements are copied.
uint64_t space_for_origins(uint64_t rows) { return 4096 + 16 * rows; }
}  // namespace

// In a stream chunk every leaf of varying length is ragged; the batch stage checks the lengths
// later.
GatherChunk::GatherChunk(const Context& context, const Streamed& stage, Allocator* arena,
                         uint64_t max_space, std::function<void(uint64_t bytes)> on_space)
    : scratch_(context.scratch),
      memory_(context.memory),
      spec_(stage.spec()),
      chunk_(scratch_),
      elements_(scratch_, Collector::Lengths::kAny, nullptr),
      arena_(arena),
      max_space_(std::min(max_space, kMaxSpace)),
      on_space_(std::move(on_space)) {}

// Pulls few elements at a time, because the stream's elements exist beside their copies.
uint32_t GatherChunk::rows_to_pull(uint64_t wanted) const {
  wanted = std::min<uint64_t>(wanted, Chunk::kRows);
  if (memory_ == nullptr) return static_cast<uint32_t>(wanted);
  // The first element gives the size.
  if (all_rows_ == 0 && (spec_ == nullptr || !spec_->fixed())) return 1;
  const uint64_t bytes = all_rows_ == 0 ? spec_->fixed_bytes() : all_bytes_ / all_rows_;
  const uint64_t fit = memory_->chunk_bytes() / std::max<uint64_t>(bytes, 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(fit, 1, wanted));
}

GatherChunk::Gathered GatherChunk::gather(ElementReader& stream, const Wanted& wanted) {
  Gathered gathered;
  elements_.begin(spec_);
  origins_.clear();
  drop_space();
  wanted_rows_ = wanted.most;
  announced_ = 0;
  // Failures::kInPlace: skipped elements are reported with the next delivered one, so one more is
  // read. There is space for it, because skipped elements take none.
  const auto wants_more = [&] {
    if (gathered.places() < wanted.least) return true;
    return wanted.failures == Failures::kInPlace && gathered.places() < wanted.most &&
           !gathered.left_out.empty() && gathered.left_out.back().place == gathered.places();
  };
  while (!gathered.failure && wants_more()) {
    const uint32_t most = rows_to_pull(wanted.most - gathered.places());
    uint32_t count = 0;
    try {
      count = stream.next(most, chunk_);
    } catch (...) {
      if (gathered.rows == 0 || wanted.failures != Failures::kEnd) throw;
      // The gathered elements are delivered before the error.
      gathered.failure =
          Failure{"stream", wanted.ordinal + gathered.rows, std::current_exception()};
      break;
    }
    if (count == 0) {
      gathered.over = true;
      break;
    }
    const uint64_t before = gathered.rows;
    const uint64_t alive = take_losses(wanted, count, gathered);
    const auto rows = static_cast<uint32_t>(gathered.rows - before);
    if (rows == 0) continue;
    positions_.resize(rows);
    std::iota(positions_.begin(), positions_.end(), wanted.ordinal + before);
    Chunk& out = elements_.add(positions_);
    if (before == 0 && !may_lease(chunk_, static_cast<uint32_t>(__builtin_ctzll(alive)))) {
      make_space(chunk_.spec(), wanted.most);
    }
    uint32_t to = 0;
    for (uint64_t left = alive; left != 0; left &= left - 1) {
      own(chunk_, static_cast<uint32_t>(__builtin_ctzll(left)), out, to++);
    }
    all_rows_ += rows;
  }
  if (gathered.rows != 0) elements_.settle();
  return gathered;
}

// Counts the chunk's rows, and moves the losses out of it. Returns a bit mask of the rows to copy.
uint64_t GatherChunk::take_losses(const Wanted& wanted, uint32_t count, Gathered& gathered) {
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
    // A row may have several failures; only the first one counts.
    while (failure != chunk_.failures().end() && failure->first == row) ++failure;
  }
  return alive;
}

// Copies the row, which is valid only until the next call of the stream; or leases its values.
void GatherChunk::own(Chunk& in, uint32_t row, Chunk& out, uint32_t to) {
  if (!out.settle(in.spec())) {
    throw schema_error(*out.spec(), *in.spec());
  }
  origins_.add(in.origin(row));
  const bool placed = space_.memory != nullptr && space_.rows < space_.layout.rows() &&
                      (space_.spec == in.spec() || *space_.spec == *in.spec());
  const bool leased = space_.memory == nullptr && may_lease(in, row), first = leases_.empty();
  for (size_t leaf = 0; leaf < in.spec()->leaves().size(); ++leaf) {
    const uint64_t bytes = in.bytes(leaf, row);
    all_bytes_ += bytes;
    if (leased && bytes != 0 && lease(in.at(leaf, row))) {
      out.view(leaf, to, in.at(leaf, row), in.shape(leaf, row));
      continue;
    }
    std::byte* copy = nullptr;
    if (placed) {
      std::byte* block = space_.memory + space_.parts.block_at();
      copy = space_.layout.fixed().row(block, space_.layout.fixed_place(leaf), space_.rows);
    } else {
      copy = scratch_.take(bytes);
    }
    if (bytes != 0) std::memcpy(copy, in.at(leaf, row), bytes);
    count_copy(bytes);
    out.view(leaf, to, copy, in.shape(leaf, row));
  }
  if (placed) ++space_.rows;
  // Elements of one size: the others will take as much as the first one.
  if (leased) announce(first && in.spec()->fixed() ? leased_bytes_ * wanted_rows_ : leased_bytes_);
}

// ---- leases ------------------------------------------------------------------------------------

// Whether the row is large, and at least a part of it lies in the arena.
bool GatherChunk::may_lease(const Chunk& in, uint32_t row) const {
  if (arena_ == nullptr) return false;
  uint64_t bytes = 0;
  bool any = false;
  for (size_t leaf = 0; leaf < in.spec()->leaves().size(); ++leaf) {
    const uint64_t own = in.bytes(leaf, row);
    bytes += own;
    any |= own != 0 && arena_->contains(in.at(leaf, row));
  }
  return any && bytes >= kMinElement;
}

// Adds a lease on the block that the values lie in. False: they are not in the arena, or there is
// no memory for the lease.
bool GatherChunk::lease(const std::byte* values) {
  if (values >= leased_begin_ && values < leased_end_) return true;  // another leaf's
  const std::optional<Ref> ref = arena_->share_holding(values);
  if (!ref) return false;
  try {
    leases_.push_back(*ref);
  } catch (...) {
    arena_->region()->return_lease(*ref);
    throw;
  }
  leased_bytes_ += ref->bytes;
  leased_begin_ = static_cast<const std::byte*>(arena_->block_of(values));
  leased_end_ = leased_begin_ + ref->bytes;
  return true;
}

// ---- memory of stream chunks -------------------------------------------------------------------

// Allocates space for `rows` elements if their size is fixed and large enough.
void GatherChunk::make_space(const SpecRef& spec, uint64_t rows) {
  if (arena_ == nullptr || spec == nullptr || !spec->fixed()) return;
  const uint64_t each = spec->fixed_bytes();
  if (each < kMinElement || rows > max_space_ / each) return;
  space_.layout = BlockLayout(*spec, rows);
  space_.parts = {spec->bytes().size(), space_.layout.bytes(), space_for_origins(rows)};
  space_.memory = static_cast<std::byte*>(arena_->allocate(space_.parts.bytes()));
  space_.spec = spec;
  if (space_.memory != nullptr) announce(space_.parts.bytes());
}

void GatherChunk::announce(uint64_t bytes) {
  if (!on_space_ || bytes <= announced_) return;
  on_space_(announced_ = bytes);
}

void GatherChunk::drop_space() {
  if (space_.memory != nullptr) arena_->release(space_.memory);
  space_.memory = nullptr;
  space_.rows = 0;
  for (const Ref& lease : leases_) arena_->region()->return_lease(lease);
  leases_.clear();
  leased_bytes_ = 0;
  leased_begin_ = leased_end_ = nullptr;
}

std::byte* GatherChunk::take_space(const StreamChunkParts& parts) {
  const bool all = space_.memory != nullptr && space_.rows == space_.layout.rows() &&
                   space_.rows == elements_.rows() && *space_.spec == *elements_.spec() &&
                   parts.origins_bytes <= space_.parts.origins_bytes;
  if (!all) return nullptr;
  space_.rows = 0;
  return std::exchange(space_.memory, nullptr);
}

}  // namespace penstock
