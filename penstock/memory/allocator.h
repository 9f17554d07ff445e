#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "penstock/memory/lease.h"
#include "penstock/memory/ledger.h"
#include "penstock/memory/ref.h"
#include "penstock/memory/region.h"

namespace penstock {

// Blocks in a region, for the process that created it. Small ones come from slabs of one size, the
// rest is best fit with coalescing. All bookkeeping lies in private memory; the region holds only
// payload and, apart from it, a 64-byte header per block through which leases come back.
//
// A block belongs to whoever allocated it until release(). share() adds a lease: the block is
// reused only when it was released and its last lease came back, from whichever process.
//
// Threads: all members from any thread. Nothing waits for I/O or, but for Options::patient, for
// anybody else; page faults of growth happen outside the lock. A forked child's copy is abandoned:
// it allocates nothing, and releasing is a no-op there.
class Allocator {
 public:
  struct Options {
    // Free bytes that keep their pages. Beyond it pages of free stretches go back to the system,
    // and cost page faults when they are needed again.
    size_t retain = SIZE_MAX;
    // Bound of all memory held: live and free. Allocation fails rather than exceed it.
    size_t max_bytes = SIZE_MAX;
    // Rather than fault pages in for 4 MiB or more, wait a little for a lease's return, while such
    // returns keep coming: at most for as long as the pages would take. Not for a thread that holds
    // the leases itself.
    bool patient = false;
    // What other allocators hold counts too. What it points to outlives the allocator.
    Ledger ledger = {};
  };

  struct Stats {
    uint64_t live_bytes = 0;  // in blocks not yet reusable, leased ones included, as rounded
    uint64_t live_blocks = 0;
    uint64_t free_bytes = 0;       // backed by pages and reusable at once
    uint64_t committed_bytes = 0;  // backed by pages: live, free and bookkeeping in the region
    uint64_t peak_live_bytes = 0;
    uint64_t peak_committed_bytes = 0;
    uint64_t allocations = 0;
    uint64_t failures = 0;       // allocate() and resize() calls that found no room
    uint64_t faulted_bytes = 0;  // ever faulted in; flat in a steady state
    uint64_t waits = 0;          // for a return, see Options::patient
    uint64_t bad_releases = 0;   // releases of what is no live block, ignored
    uint64_t stale_returns = 0;  // lease returns that made no sense, ignored
  };

  // `region`: created in this process, with no other allocator. Error kOutOfMemory.
  explicit Allocator(std::shared_ptr<Region> region);
  Allocator(std::shared_ptr<Region> region, Options options);
  // Leases that are out stay valid: they keep the region's memory.
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  const std::shared_ptr<Region>& region() const;

  // 64-byte aligned, contents undefined, pages present; nullptr when there is no room (bytes == 0
  // is a smallest block). Blocks above 256 KiB start on a 64 KiB boundary.
  void* allocate(size_t bytes) noexcept;

  // Drops the owner's reference. `block` is what allocate() gave, or nullptr; anything else is
  // counted and ignored.
  void release(void* block) noexcept;

  // Adds one lease. nullopt if `block` is no live block that its owner still holds, or there is no
  // room for the header of one that was never shared.
  std::optional<Ref> share(void* block) noexcept;

  // share() and a Lease of it in this process; an empty Lease if there is no such block.
  Lease lease(void* block);

  // realloc: the contents up to the smaller size are kept, in place when possible (a block with
  // leases out never shrinks in place below what they see). nullptr, and `block` untouched, when
  // there is no room. `block` nullptr: allocate().
  void* resize(void* block, size_t bytes) noexcept;

  // The data start of the live block that holds this address; nullptr if there is none.
  void* block_of(const void* inside) const noexcept;
  // Bytes asked for; 0 if `block` is no live block's start.
  size_t bytes_of(const void* block) const noexcept;
  // By address range alone.
  bool contains(const void* p) const noexcept;

  // Gives back all pages that no live block needs: when nothing more will be allocated for a while.
  void trim() noexcept;

  // Takes back what leases have returned. allocate() does it by itself; for tests and idle threads.
  void collect() noexcept;

  Stats stats() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
