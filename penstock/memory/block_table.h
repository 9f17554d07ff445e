#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

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
