#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace penstock {

// The bytes of an arena's large blocks (beyond size_class::kLargest) that are in use, in a word
// that several processes write. The allocator adds a new block. The holder of a block's last
// reference, which may be the consumer, subtracts it, long before the allocator reclaims the block.
// So the word is right at every moment, even while its allocator is busy. Small blocks are not
// counted, to keep their leases cheap.
//
// The word is arena << 48 | bytes. An arena that replaces one of a killed process has a new number,
// so later returns of the old arena's leases change nothing.
//
// All accesses are relaxed: a process that allocates because a lease was returned has learnt of it
// through the board, and thereby also of the word. A process killed between dropping the last
// reference and pushing the block on the return stack loses the block: it is not reused, and stays
// counted if it was not subtracted yet.
class BlocksInUse {
 public:
  BlocksInUse() = default;  // counts nothing
  BlocksInUse(std::shared_ptr<std::atomic<uint64_t>> word, uint32_t arena)
      : word_(std::move(word)), arena_(uint64_t{arena} << kArenaShift) {}

  static uint64_t bytes(uint64_t word) { return word & kBytes; }

  void reset() const noexcept {
    if (word_ != nullptr) word_->store(arena_, std::memory_order_relaxed);
  }
  void add(uint64_t bytes) const noexcept {
    if (word_ != nullptr) word_->fetch_add(bytes, std::memory_order_relaxed);
  }
  void subtract(uint64_t bytes) const noexcept {
    if (bytes == 0 || word_ == nullptr) return;
    uint64_t seen = word_->load(std::memory_order_relaxed);
    while ((seen & ~kBytes) == arena_ &&
           !word_->compare_exchange_weak(seen, seen - std::min(bytes, seen & kBytes),
                                         std::memory_order_relaxed)) {
    }
  }

 private:
  static constexpr int kArenaShift = 48;
  static constexpr uint64_t kBytes = (uint64_t{1} << kArenaShift) - 1;
  std::shared_ptr<std::atomic<uint64_t>> word_;
  uint64_t arena_ = 0;
};

// The memory that all allocators of one consumer hold together. Each worker's arena keeps the pages
// of returned blocks, so that the next batch costs no page faults. But the share of each worker in
// the batches in flight keeps changing. If each arena kept its own peak, all arenas together would
// hold far more than all batches ever needed. So each allocator publishes the bytes that it holds,
// and returns pages while the total exceeds the largest amount that was ever in use at a time, or
// is expected to be (Ledger::most_live, which any process may raise).
//
// Lies in shared memory, initially all zeroes. A process may be killed at any point: its entries
// are at worst outdated, and their next owner overwrites them.
struct LedgerEntry {
  std::atomic<uint64_t> in_use;  // see BlocksInUse
  // Written by its allocator alone, when it last updated them:
  std::atomic<uint64_t> small;   // bytes of small blocks in use
  std::atomic<uint64_t> backed;  // bytes with pages, in use and free
};

// Raises `most` to at least `to`. Returns the new value.
inline uint64_t atomic_max(std::atomic<uint64_t>& most, uint64_t to) noexcept {
  uint64_t seen = most.load(std::memory_order_relaxed);
  while (seen < to && !most.compare_exchange_weak(seen, to, std::memory_order_relaxed)) {
  }
  return std::max(seen, to);
}

struct Ledger {
  LedgerEntry* entries = nullptr;  // nullptr: no ledger
  size_t stride = 0;               // bytes from one entry to the next
  uint32_t count = 0;
  uint32_t mine = 0;
  BlocksInUse in_use = {};  // of entry `mine`
  std::atomic<uint64_t>* most_live = nullptr;

  // Publishes the bytes that this allocator holds. Returns the excess of all allocators together.
  uint64_t excess(uint64_t small, uint64_t backed) const noexcept {
    entry(mine).small.store(small, std::memory_order_relaxed);
    entry(mine).backed.store(backed, std::memory_order_relaxed);
    uint64_t all_live = 0, all_backed = 0;
    for (uint32_t i = 0; i < count; ++i) {
      all_live += BlocksInUse::bytes(entry(i).in_use.load(std::memory_order_relaxed)) +
                  entry(i).small.load(std::memory_order_relaxed);
      all_backed += entry(i).backed.load(std::memory_order_relaxed);
    }
    const uint64_t most = atomic_max(*most_live, all_live);
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
