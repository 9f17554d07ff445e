#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

// The sizes of small blocks: 64, 128, 192, 256, then four to each doubling up to 256 KiB. So a
// block beyond 256 bytes wastes at most a fifth of itself, and every start is 64-byte aligned.
namespace penstock::size_class {

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
