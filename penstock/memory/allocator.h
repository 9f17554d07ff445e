#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "penstock/memory/lease.h"
#include "penstock/memory/ledger.h"
#include "penstock/memory/region.h"

namespace penstock {

// Allocates blocks in a region, in the process that created it. Small blocks come from slabs of one
// size; large ones are best fit with coalescing. All bookkeeping is in private memory. The region
// holds only payload and, separately, a 64-byte header per block through which leases are returned.
//
// The caller of allocate() owns the block until release(). share() adds a lease. A block is reused
// only after it was released and its last lease was returned, from any process.
//
// Threads: all members from any thread. No call waits for I/O or, except with
// Options::wait_for_returns, for another thread; page faults of growth happen outside the lock. In
// a forked child the allocator is abandoned: it allocates nothing, and release() has no effect.
class Allocator {
 public:
  struct Options {
    // Free bytes that keep their pages. Pages of further free stretches are returned to the system,
    // and cost page faults when they are needed again.
    size_t retain = SIZE_MAX;
    // The limit of all memory held, live and free. Allocations beyond it fail.
    size_t max_bytes = SIZE_MAX;
    // Before the memory held grows beyond this, pages of free stretches are returned to the system.
    // So memory that is free but too fragmented to be used adds nothing to it.
    size_t soft_limit = SIZE_MAX;
    // Before faulting in 4 MiB or more, waits for a lease to be returned, if leases were returned
    // recently. Waits at most as long as the page faults would take. Not for a thread that holds
    // the leases itself.
    bool wait_for_returns = false;
    // Accounts for the memory of other allocators too. Its pointers must outlive the allocator.
    Ledger ledger = {};
  };

  struct Stats {
    uint64_t live_bytes = 0;  // in blocks not reusable yet, leased ones included; rounded sizes
    uint64_t live_blocks = 0;
    uint64_t free_bytes = 0;       // backed by pages and reusable immediately
    uint64_t committed_bytes = 0;  // backed by pages: live, free and bookkeeping in the region
    uint64_t peak_live_bytes = 0;
    uint64_t peak_committed_bytes = 0;
    uint64_t allocations = 0;
    uint64_t failures = 0;       // allocate() and resize() calls without enough memory
    uint64_t faulted_bytes = 0;  // faulted in so far; constant in a steady state
    uint64_t waits = 0;          // see Options::wait_for_returns
    uint64_t bad_releases = 0;   // of addresses that are not a live block; ignored
    uint64_t stale_returns = 0;  // invalid lease returns, which were ignored
  };

  // `region`: created in this process, without another allocator. Error kOutOfMemory.
  explicit Allocator(std::shared_ptr<Region> region);
  Allocator(std::shared_ptr<Region> region, Options options);
  // Outstanding leases stay valid: they keep the region's memory.
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  const std::shared_ptr<Region>& region() const;

  // 64-byte aligned, contents undefined, pages present; nullptr if there is no memory. bytes == 0
  // gives a block of the smallest size. Blocks above 256 KiB start on a 64 KiB boundary.
  void* allocate(size_t bytes) noexcept;
  // As allocate(), but also nullptr if a large block would need new pages: faulting in 100 MiB
  // takes tens of milliseconds.
  void* allocate_without_faults(size_t bytes) noexcept;

  // Drops the owner's reference. `block`: from allocate(), or nullptr; any other address is counted
  // and ignored.
  void release(void* block) noexcept;

  // Adds one lease. nullopt if `block` is not a live, unreleased block, or there is no memory for
  // the header of its first lease.
  std::optional<Ref> share(void* block) noexcept;

  // share(), as a Lease in this process; an empty Lease if share() fails.
  Lease lease(void* block);

  // Adds one lease to the live block that contains this address. The block may have been released
  // already if the caller knows of another lease that stays meanwhile. nullopt: there is no such
  // block, or no memory for the header of its first lease.
  std::optional<Ref> share_holding(const void* inside) noexcept;

  // Like realloc(): keeps the contents up to the smaller size, in place if possible. A block with
  // outstanding leases never shrinks in place below their size. nullptr, and `block` unchanged, if
  // there is no memory. `block` nullptr: allocate().
  void* resize(void* block, size_t bytes) noexcept;

  // The start of the live block that contains this address; nullptr: none.
  void* block_of(const void* inside) const noexcept;
  // The requested size; 0 if `block` is not the start of a live block.
  size_t bytes_of(const void* block) const noexcept;
  // By address range alone.
  bool contains(const void* p) const noexcept;

  // Returns all pages to the system that no live block needs. For when nothing will be allocated
  // for a while.
  void trim() noexcept;

  // Reclaims returned blocks. allocate() does so too; for tests and idle threads.
  void collect() noexcept;

  Stats stats() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
