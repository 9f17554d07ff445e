#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/base/fork_aware.h"
#include "penstock/memory/allocator.h"
#include "penstock/memory/block_table.h"
#include "penstock/memory/page_heap.h"
#include "penstock/memory/region_layout.h"
#include "penstock/memory/size_classes.h"

namespace penstock {

// Every member is called with `mutex` held; those that take it as `lock` let go of it while
// PageHeap faults pages in, so what was looked at before such a call may have changed after it.
struct Allocator::Impl final : ForkAware {
  static constexpr size_t kUnit = PageHeap::kUnit;
  static constexpr uint32_t kNone = BlockTable::kNone;
  static constexpr uint32_t kLargeKind = size_class::kCount;  // of slots: after the slabs' kinds
  static constexpr uint32_t kHeadersPerUnit = kUnit / sizeof(BlockHeader);
  static_assert(kUnit == size_class::kUnit);

  // What a unit of the region holds, in one word: two bits of kind above an index.
  enum class Kind : uint32_t {
    kNothing = 0,
    kSlab = 1,        // number of the slab
    kLargeBlock = 2,  // slot of the block
    kHeaders = 3,     // which group of slots has its headers here
  };
  static constexpr uint32_t tag(Kind kind, uint32_t index) {
    return static_cast<uint32_t>(kind) << 30 | index;
  }
  static constexpr Kind kind_of(uint32_t word) { return static_cast<Kind>(word >> 30); }
  static constexpr uint32_t index_of(uint32_t word) { return word & ((1u << 30) - 1); }

  static constexpr size_t units_for(size_t bytes) { return bytes / kUnit + (bytes % kUnit != 0); }

  struct Slab {
    uint32_t start = 0;  // unit
    uint32_t size_class = 0;
    uint32_t first_slot = 0;
    uint32_t live = 0;
    uint32_t free_slot = kNone;  // its free blocks, linked by Block::next
    uint32_t next = kNone;  // in its class's list of slabs with a free block, or of unused ones
    uint32_t previous = kNone;
  };

  Impl(std::shared_ptr<Region> the_region, Options options)
      : region(std::move(the_region)),
        pages(region, options.retain, options.max_bytes),
        blocks(size_class::kCount + 1),
        ledger(options.ledger),
        patient(options.patient) {
    partial.fill(kNone);
    ledger.in_use.begin();
    region->count_in(ledger.in_use);
    watch_forks();
  }
  ~Impl() { ignore_forks(); }

  void before_fork() noexcept override { mutex.lock(); }
  void after_fork_in_parent() noexcept override { mutex.unlock(); }
  void after_fork_in_child() noexcept override {
    abandoned = true;
    mutex.unlock();
  }

  // ---- finding ----

  // The block that holds this address, live or not; kNone if that is no block's.
  uint32_t slot_at(const void* address) const noexcept {
    if (!region->contains(address)) return kNone;
    uint64_t offset = region->offset_of(address);
    uint64_t unit = offset / kUnit;
    if (unit >= unit_holds.size()) return kNone;
    uint32_t word = unit_holds[unit];
    if (kind_of(word) == Kind::kLargeBlock) return index_of(word);
    if (kind_of(word) != Kind::kSlab) return kNone;
    const Slab& slab = slabs[index_of(word)];
    const size_class::Division& division = size_class::kDivisions[slab.size_class];
    uint32_t index = division.index(offset - uint64_t{slab.start} * kUnit);
    return index < division.blocks ? slab.first_slot + index : kNone;
  }

  // The live block that starts exactly there.
  uint32_t live_slot(const void* start) const noexcept {
    uint32_t slot = slot_at(start);
    if (slot == kNone || !(blocks[slot].flags & BlockRecord::kLive) ||
        blocks[slot].data != region->offset_of(start)) {
      return kNone;
    }
    return slot;
  }

  uint64_t header_offset(uint32_t slot) const {
    return uint64_t{header_units[slot / kHeadersPerUnit]} * kUnit +
           slot % kHeadersPerUnit * sizeof(BlockHeader);
  }

  size_t capacity(const BlockRecord& block) const {
    if (block.home != BlockRecord::kLarge) {
      return size_class::kDivisions[slabs[block.home].size_class].bytes;
    }
    return size_t{pages.length(static_cast<uint32_t>(block.data / kUnit))} * kUnit;
  }

  // ---- making and freeing: allocator_blocks.cc ----

  void mark_units(uint32_t start, uint32_t count, uint32_t word);
  std::optional<uint32_t> take_units(PageHeap::Lock& lock, uint32_t count);
  void* bring_to_life(uint32_t slot, size_t bytes, size_t rounded);
  void* allocate_large(PageHeap::Lock& lock, size_t bytes);
  // On and off the list of its class's slabs that have a free block.
  void link(uint32_t number) noexcept;
  void unlink(uint32_t number) noexcept;
  bool make_slab(PageHeap::Lock& lock, uint32_t size_class);
  void drop_slab(uint32_t number) noexcept;  // an empty one
  // Those kept although nothing lives in them, for when others lack room. Whether there were any.
  bool drop_empty_slabs() noexcept;
  void* allocate_small(PageHeap::Lock& lock, size_t bytes);
  void* allocate(PageHeap::Lock& lock, size_t bytes) noexcept;
  // What the block counts in ledger.in_use.
  uint64_t counted(const BlockRecord& block) const {
    return block.home == BlockRecord::kLarge ? capacity(block) : 0;
  }
  void free_block(uint32_t slot) noexcept;  // it was taken off ledger.in_use before
  void release(void* start) noexcept;
  // Writes down what is held, and gives pages back if all allocators together hold too many.
  void balance() noexcept;
  // Whether the block now has room for `bytes` where it is, neither too little nor far too much.
  bool resize_in_place(PageHeap::Lock& lock, uint32_t slot, size_t bytes);

  // ---- leases: allocator_leases.cc ----

  // Makes room in the region for the headers of this slot's group. False: there is none.
  bool provide_header(PageHeap::Lock& lock, uint32_t slot);
  std::optional<Ref> share(PageHeap::Lock& lock, void* start);
  // Frees what is on the return stack, checking every step: the links are in memory that other
  // processes write. A block that was freed is not live any more, so a circle ends.
  void collect() noexcept;
  void came_back(uint32_t slot);
  // Options::patient, as one rents skis: until as long was waited, all waits since it last grew
  // together, as faulting the pages in would take. So it is never more than twice what would have
  // been best, and a queue that may be longer gets its blocks.
  void await_returns(PageHeap::Lock& lock, uint32_t count);
  // Whether leases are out on a block that its owner still holds.
  bool leased(uint32_t slot) const;

  std::mutex mutex;
  std::shared_ptr<Region> region;
  PageHeap pages;
  BlockTable blocks;
  const Ledger ledger;
  const bool patient;
  std::vector<uint32_t> unit_holds;    // by unit: tag()
  std::vector<uint32_t> header_units;  // by group of slots: unit of their headers, or 0
  std::vector<Slab> slabs;
  std::array<uint32_t, size_class::kCount> partial;  // slabs with a free block, by class
  uint32_t free_slab = kNone;
  uint32_t generation = 0;
  bool abandoned = false;
  uint64_t live_bytes = 0, small_bytes = 0, peak_live_bytes = 0, live_blocks = 0;
  // Of large blocks: how many were released and are leased, when one was last collected, its units,
  // and for how long returns were waited for since.
  uint64_t lent = 0, returned_ns = 0, waited_ns = 0;
  uint32_t returned_units = 0;
  bool came_at_once = false;  // the one before
  uint64_t waits = 0;
  uint64_t allocations = 0, failures = 0, bad_releases = 0, bad_returns = 0;
};

}  // namespace penstock
