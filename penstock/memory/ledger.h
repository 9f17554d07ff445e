#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace penstock {

// What the allocators that feed one consumer hold together. Each worker's arena keeps the pages of
// blocks that came back, for the next batch to cost no page faults. But who makes how many of the
// batches in flight changes all the time, and if each arena kept the most that it ever needed, all
// together would hold far more than there ever were batches. So each writes down what it holds, and
// gives pages back while all of them hold more than was ever in use at once.
//
// Lies in shared memory, all zeroes at first. Any process may be killed in the middle of it: the
// entries are only ever too old, and the next owner of a place overwrites them.
struct LedgerEntry {
  std::atomic<uint64_t> live;    // bytes in blocks that are in use, as far as their owner knows
  std::atomic<uint64_t> backed;  // bytes that have pages: live ones, and free ones
};

struct Ledger {
  LedgerEntry* entries = nullptr;  // nullptr: no ledger
  size_t stride = 0;               // bytes from one entry to the next
  uint32_t count = 0;
  uint32_t mine = 0;
  std::atomic<uint64_t>* most_live = nullptr;

  // Writes down what this one holds. Returns how many bytes all hold that are too many.
  uint64_t excess(uint64_t live, uint64_t backed) const noexcept {
    entry(mine).live.store(live, std::memory_order_relaxed);
    entry(mine).backed.store(backed, std::memory_order_relaxed);
    uint64_t all_live = 0, all_backed = 0;
    for (uint32_t i = 0; i < count; ++i) {
      all_live += entry(i).live.load(std::memory_order_relaxed);
      all_backed += entry(i).backed.load(std::memory_order_relaxed);
    }
    uint64_t most = most_live->load(std::memory_order_relaxed);
    while (most < all_live && !most_live->compare_exchange_weak(most, all_live)) {
    }
    most = std::max(most, all_live);
    uint64_t bound = most + most / 16 + kSpare;
    return all_backed > bound ? all_backed - bound : 0;
  }

 private:
  static constexpr uint64_t kSpare = 1 << 20;
  LedgerEntry& entry(uint32_t i) const noexcept {
    return *reinterpret_cast<LedgerEntry*>(reinterpret_cast<std::byte*>(entries) + i * stride);
  }
};

}  // namespace penstock
