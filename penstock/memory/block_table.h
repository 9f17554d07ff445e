#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::size_class {

// The sizes of small blocks: 64, 128, 192, 256, then four to each doubling up to 256 KiB. So a
// block beyond 256 bytes wastes at most a fifth of itself, and every start is 64-byte aligned.

inline constexpr size_t kUnit = size_t{64} << 10;  // spans and slabs are multiples of it
inline constexpr size_t kLargest = size_t{256} << 10;
inline constexpr uint32_t kCount = 44;

// The class of blocks of at least `bytes`, which is at most kLargest.
constexpr uint32_t of(size_t bytes) {
  if (bytes <= 256) return bytes <= 64 ? 0 : static_cast<uint32_t>((bytes - 1) / 64);
  uint64_t last = bytes - 1;
  auto log2 = static_cast<uint32_t>(63 - std::countl_zero(last));
  return 4 + (log2 - 8) * 4 + static_cast<uint32_t>(last >> (log2 - 2) & 3);
}

constexpr size_t bytes_of(uint32_t size_class) {
  if (size_class < 4) return (size_class + 1) * 64;
  uint32_t log2 = 8 + (size_class - 4) / 4;
  return (size_t{1} << log2) + ((size_class - 4) % 4 + 1) * (size_t{1} << (log2 - 2));
}

// How a slab, a span of blocks of one class, is divided.
struct Division {
  uint32_t bytes;       // of a block
  uint32_t units;       // of the slab
  uint32_t blocks;      // in the slab; the rest at its end is smaller than a block
  uint64_t reciprocal;  // of bytes / 64, times 2^32

  // The index of the block that contains this offset of the slab; `blocks` for the rest at the end.
  // In steps of 64 bytes offsets are below 2^15 and block sizes at most 2^12, so the rounding
  // error of the reciprocal, below 2^15 / 2^32, never carries a quotient over the next integer.
  constexpr uint32_t index(uint64_t offset) const {
    return static_cast<uint32_t>((offset / 64 * reciprocal) >> 32);
  }
};

// The fewest units that hold four blocks and waste at most an eighth.
constexpr Division divide(uint32_t size_class) {
  size_t bytes = bytes_of(size_class);
  uint32_t units = 1;
  while (units * kUnit / bytes < 4 || units * kUnit % bytes > units * kUnit / 8) ++units;
  uint64_t steps = bytes / 64;
  return {static_cast<uint32_t>(bytes), units, static_cast<uint32_t>(units * kUnit / bytes),
          ((uint64_t{1} << 32) + steps - 1) / steps};
}

inline constexpr std::array<Division, kCount> kDivisions = [] {
  std::array<Division, kCount> divisions{};
  for (uint32_t c = 0; c < kCount; ++c) divisions[c] = divide(c);
  return divisions;
}();

static_assert(bytes_of(kCount - 1) == kLargest && of(kLargest) == kCount - 1);

}  // namespace penstock::size_class

namespace penstock {

// An allocator's record of one block, in private memory. A slot is a block's number; it determines
// where the block's header lies in the region once the block was shared.
struct BlockRecord {
  enum Flag : uint8_t {
    kLive = 1,    // allocated, and not reusable yet
    kOwned = 2,   // not released by its owner
    kShared = 4,  // its header counts references in this generation
  };

  uint64_t data = 0;   // offset in the region
  uint64_t bytes = 0;  // requested
  uint32_t generation = 0;
  uint32_t home = 0;  // its slab's number, or kLarge
  uint32_t next = 0;  // in a free list
  uint8_t flags = 0;

  static constexpr uint32_t kLarge = UINT32_MAX;
};

// The records of all blocks by slot, allocated in ranges of a few fixed lengths (a slab's, or 1).
// Not synchronised.
class BlockTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit BlockTable(size_t range_kinds) : free_(range_kinds, kNone) {}

  BlockRecord& operator[](uint32_t slot) { return blocks_[slot]; }
  const BlockRecord& operator[](uint32_t slot) const { return blocks_[slot]; }
  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()); }

  // Allocates `count` consecutive slots and returns the first; every range of a `kind` has the same
  // count. May throw std::bad_alloc, with nothing changed.
  uint32_t allocate(uint32_t kind, uint32_t count) {
    uint32_t first = free_[kind];
    if (first != kNone) {
      free_[kind] = blocks_[first].next;
      return first;
    }
    first = size();
    blocks_.resize(blocks_.size() + count);
    return first;
  }

  void release(uint32_t kind, uint32_t first) noexcept {
    blocks_[first].next = free_[kind];
    free_[kind] = first;
  }

 private:
  std::vector<BlockRecord> blocks_;
  std::vector<uint32_t> free_;  // by kind: first slot of a free range, linked by `next`
};

}  // namespace penstock
