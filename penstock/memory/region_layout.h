#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

// The parts of a region besides payload: words that several processes read and write.
//
// A block's `state` holds its generation and the number of references: the owner's (once the block
// was shared) and one per lease. Invariants:
//
// 1. Only the allocator gives a block a new generation, and only while its count is 0.
// 2. A reference is dropped by compare-and-swap on its generation. So a reference of an earlier
//    generation, or a duplicate one, changes nothing.
// 3. The thread that drops the count to 0 has exclusive access to the block: the owner frees it, a
//    lease pushes it on the return stack. So a block is on the stack at most once, and `next` has
//    one writer.
// 4. The stack is only pushed on or taken whole, so there is no ABA problem.
//
// Headers lie in stretches of their own that never become payload, so an invalid return never
// writes to payload.
namespace penstock {

struct alignas(64) RegionHeader {
  static constexpr uint64_t kMagic = 0x31636f7473'6e6570;  // "penstoc1"
  static constexpr uint32_t kVersion = 3;

  uint64_t magic;
  uint32_t version;
  uint32_t kind;
  uint64_t reserve;
  alignas(64) std::atomic<uint64_t> committed;  // bytes of the file; only grows
  alignas(64) std::atomic<uint64_t> returned;   // offset of the return stack's top, 0: empty
  // invalid lease returns that were ignored, see invariant 2
  alignas(64) std::atomic<uint64_t> stale_returns;
  // A device's driver keeps the pages below `pinned`. A discard adds itself to `discarding` before
  // it reads `pinned`, and a pinner reads `discarding` after it has set `pinned`: one sees the
  // other.
  alignas(64) std::atomic<uint64_t> pinned;
  std::atomic<uint64_t> discarding;
};

struct alignas(64) BlockHeader {
  static constexpr uint64_t kMagic = 0x6b636f6c62'617000;

  uint64_t magic;                 // kMagic ^ the header's own offset
  std::atomic<uint64_t> state;    // generation << 32 | references
  std::atomic<uint64_t> data;     // offset of the payload
  std::atomic<uint64_t> bytes;    // of payload
  std::atomic<uint64_t> next;     // in the return stack: offset of a header, or 0
  std::atomic<uint64_t> counted;  // its bytes in the arena's BlocksInUse; 0 for a small block

  static constexpr uint64_t state_of(uint32_t generation, uint32_t references) {
    return uint64_t{generation} << 32 | references;
  }
  static constexpr uint32_t generation_of(uint64_t state) {
    return static_cast<uint32_t>(state >> 32);
  }
  static constexpr uint32_t references_of(uint64_t state) { return static_cast<uint32_t>(state); }

  // Adds a reference of `generation`. False: there is none left, so the block may be reused.
  bool add(uint32_t generation) noexcept {
    uint64_t seen = state.load(std::memory_order_relaxed);
    do {
      if (generation_of(seen) != generation || references_of(seen) == 0) return false;
    } while (!state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
    return true;
  }

  // Drops one reference of `generation`. Returns how many are left, or -1 if there was none.
  int64_t drop(uint32_t generation) noexcept {
    uint64_t seen = state.load(std::memory_order_relaxed);
    do {
      if (generation_of(seen) != generation || references_of(seen) == 0) return -1;
    } while (!state.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                          std::memory_order_relaxed));
    return references_of(seen) - 1;
  }
};

static_assert(sizeof(BlockHeader) == 64 && sizeof(RegionHeader) == 320);
static_assert(std::atomic<uint64_t>::is_always_lock_free);  // necessary between processes

}  // namespace penstock
