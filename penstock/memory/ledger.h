#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace penstock {

// The bytes of an arena's large blocks (size_class::kLargest) that are in use, in a word that
// several processes write: its allocator adds a block when it makes it, and whoever gives up the
// block's last reference takes it off, which may be the consumer, long before the allocator
// collects it. So the word is right at every moment, whatever its allocator is busy with. Small
// blocks are left out, for a lease of theirs to cost nothing more.
//
// The word is arena << 48 | bytes. An arena that takes over the place of a killed process begins
// with a number of its own, and leases of the one before, which end later, change nothing.
//
// All of it is relaxed: who allocates because something was returned learnt of it through the
// board, and with that of the word. Whoever is killed between giving up the last reference and the
// push on the return stack loses that block: it is not used again, and counts on if it had not
// been taken off yet.
class BlocksInUse {
 public:
  BlocksInUse() = default;  // counts nothing
  BlocksInUse(std::shared_ptr<std::atomic<uint64_t>> word, uint32_t arena)
      : word_(std::move(word)), arena_(uint64_t{arena} << kArenaShift) {}

  static uint64_t bytes(uint64_t word) { return word & kBytes; }

  void begin() const noexcept {
    if (word_ != nullptr) word_->store(arena_, std::memory_order_relaxed);
  }
  void add(uint64_t bytes) const noexcept {
    if (word_ != nullptr) word_->fetch_add(bytes, std::memory_order_relaxed);
  }
  void take_off(uint64_t bytes) const noexcept {
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

// What the allocators that feed one consumer hold together. Each worker's arena keeps the pages of
// blocks that came back, for the next batch to cost no page faults. But who makes how many of the
// batches in flight changes all the time, and if each arena kept the most that it ever needed, all
// together would hold far more than there ever were batches. So each writes down what it holds, and
// gives pages back while all of them hold more than was ever in use at once, or is expected to be
// (Ledger::most_live, which anybody may raise).
//
// Lies in shared memory, all zeroes at first. Any process may be killed in the middle of it: the
// entries are only ever too old, and the next owner of a place overwrites them.
struct LedgerEntry {
  std::atomic<uint64_t> in_use;  // see BlocksInUse
  // Its allocator's alone, and as old as its last look:
  std::atomic<uint64_t> small;   // bytes in small blocks that are in use, as far as it knows
  std::atomic<uint64_t> backed;  // bytes that have pages: in use, and free
};

// Makes it at least `to`. What it is then.
inline uint64_t raise_to(std::atomic<uint64_t>& most, uint64_t to) noexcept {
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

  // Writes down what this one holds. Returns how many bytes all hold that are too many.
  uint64_t excess(uint64_t small, uint64_t backed) const noexcept {
    entry(mine).small.store(small, std::memory_order_relaxed);
    entry(mine).backed.store(backed, std::memory_order_relaxed);
    uint64_t all_live = 0, all_backed = 0;
    for (uint32_t i = 0; i < count; ++i) {
      all_live += BlocksInUse::bytes(entry(i).in_use.load(std::memory_order_relaxed)) +
                  entry(i).small.load(std::memory_order_relaxed);
      all_backed += entry(i).backed.load(std::memory_order_relaxed);
    }
    const uint64_t most = raise_to(*most_live, all_live);
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
