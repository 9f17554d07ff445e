#include "penstock/memory/allocator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/memory/block_table.h"
#include "penstock/memory/fork_aware.h"
#include "penstock/memory/page_heap.h"
#include "penstock/memory/region_layout.h"
#include "penstock/memory/size_classes.h"

namespace penstock {
namespace {

constexpr size_t kUnit = PageHeap::kUnit;
constexpr uint32_t kNone = BlockTable::kNone;
constexpr uint32_t kLargeKind = size_class::kCount;  // of slots: after the slabs' kinds
constexpr uint32_t kHeadersPerUnit = kUnit / sizeof(BlockHeader);

static_assert(kUnit == size_class::kUnit);

size_t units_for(size_t bytes) { return bytes / kUnit + (bytes % kUnit != 0); }

// What a unit of the region holds, in one word: two bits of kind above an index.
enum class Kind : uint32_t { kNothing = 0, kSlab = 1, kLargeBlock = 2, kHeaders = 3 };
constexpr uint32_t tag(Kind kind, uint32_t index) {
  return static_cast<uint32_t>(kind) << 30 | index;
}
constexpr Kind kind_of(uint32_t word) { return static_cast<Kind>(word >> 30); }
constexpr uint32_t index_of(uint32_t word) { return word & ((1u << 30) - 1); }

struct Slab {
  uint32_t start = 0;  // unit
  uint32_t size_class = 0;
  uint32_t first_slot = 0;
  uint32_t live = 0;
  uint32_t free_slot = kNone;  // its free blocks, linked by Block::next
  uint32_t next = kNone;  // in its class's list of slabs with a free block, or of unused numbers
  uint32_t previous = kNone;
};

}  // namespace

// The lock is held in every member unless its name ends in `_unlocked`. PageHeap lets go of it
// while it faults pages in, so what a member looked at before such a call may have changed after
// it.
struct Allocator::Impl final : ForkAware {
  Impl(std::shared_ptr<Region> the_region, Options options)
      : region(std::move(the_region)),
        pages(region, options.retain, options.max_bytes),
        blocks(size_class::kCount + 1) {
    partial.fill(kNone);
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
    if (slot == kNone || !(blocks[slot].flags & Block::kLive) ||
        blocks[slot].data != region->offset_of(start)) {
      return kNone;
    }
    return slot;
  }

  uint64_t header_offset(uint32_t slot) const {
    return uint64_t{header_units[slot / kHeadersPerUnit]} * kUnit +
           slot % kHeadersPerUnit * sizeof(BlockHeader);
  }

  size_t capacity(const Block& block) const {
    if (block.home != Block::kLarge) {
      return size_class::kDivisions[slabs[block.home].size_class].bytes;
    }
    return size_t{pages.length(static_cast<uint32_t>(block.data / kUnit))} * kUnit;
  }

  // ---- making and freeing ----

  void mark_units(uint32_t start, uint32_t count, uint32_t word) {
    std::fill_n(unit_holds.begin() + start, count, word);
  }

  std::optional<uint32_t> take_units(PageHeap::Lock& lock, uint32_t count) {
    std::optional<uint32_t> start = pages.take(lock, count);
    if (!start) return start;
    try {
      if (unit_holds.size() < pages.end()) unit_holds.resize(pages.end());
    } catch (...) {
      pages.give(*start);
      throw;
    }
    return start;
  }

  void* bring_to_life(uint32_t slot, size_t bytes, size_t rounded) {
    Block& block = blocks[slot];
    block.bytes = bytes;
    block.flags = Block::kLive | Block::kOwned;
    if (++generation == 0) ++generation;
    block.generation = generation;
    ++allocations;
    ++live_blocks;
    live_bytes += rounded;
    peak_live_bytes = std::max(peak_live_bytes, live_bytes);
    return region->base() + block.data;
  }

  void* allocate_large(PageHeap::Lock& lock, size_t bytes) {
    size_t units = units_for(bytes);
    if (units > region->reserve() / kUnit) return nullptr;
    auto count = static_cast<uint32_t>(units);
    uint32_t slot = blocks.take(kLargeKind, 1);
    std::optional<uint32_t> start;
    try {
      start = take_units(lock, count);
    } catch (...) {
      blocks.give(kLargeKind, slot);
      throw;
    }
    if (!start) {
      blocks.give(kLargeKind, slot);
      return nullptr;
    }
    mark_units(*start, count, tag(Kind::kLargeBlock, slot));
    blocks[slot].data = uint64_t{*start} * kUnit;
    blocks[slot].home = Block::kLarge;
    return bring_to_life(slot, bytes, units * kUnit);
  }

  void link(uint32_t number) noexcept {
    Slab& slab = slabs[number];
    slab.previous = kNone;
    slab.next = partial[slab.size_class];
    if (slab.next != kNone) slabs[slab.next].previous = number;
    partial[slab.size_class] = number;
  }

  void unlink(uint32_t number) noexcept {
    Slab& slab = slabs[number];
    (slab.previous != kNone ? slabs[slab.previous].next : partial[slab.size_class]) = slab.next;
    if (slab.next != kNone) slabs[slab.next].previous = slab.previous;
  }

  bool make_slab(PageHeap::Lock& lock, uint32_t size_class) {
    const size_class::Division& division = size_class::kDivisions[size_class];
    std::optional<uint32_t> start = take_units(lock, division.units);
    if (!start) return false;
    uint32_t number = free_slab;
    uint32_t first_slot = kNone;
    try {
      first_slot = blocks.take(size_class, division.blocks);
      if (number == kNone) {
        slabs.emplace_back();
        number = static_cast<uint32_t>(slabs.size() - 1);
      } else {
        free_slab = slabs[number].next;
      }
    } catch (...) {
      if (first_slot != kNone) blocks.give(size_class, first_slot);
      pages.give(*start);
      throw;
    }
    slabs[number] = {*start, size_class, first_slot, 0, kNone, kNone, kNone};
    for (uint32_t i = division.blocks; i-- > 0;) {
      Block& block = blocks[first_slot + i];
      block = {};
      block.data = uint64_t{*start} * kUnit + uint64_t{i} * division.bytes;
      block.home = number;
      block.next = slabs[number].free_slot;
      slabs[number].free_slot = first_slot + i;
    }
    mark_units(*start, division.units, tag(Kind::kSlab, number));
    link(number);
    return true;
  }

  void drop_slab(uint32_t number) noexcept {
    Slab& slab = slabs[number];
    unlink(number);
    mark_units(slab.start, size_class::kDivisions[slab.size_class].units, 0);
    blocks.give(slab.size_class, slab.first_slot);
    pages.give(slab.start);
    slab.next = free_slab;
    free_slab = number;
  }

  // The slabs that are kept although nothing lives in them: where others lack room they go.
  bool drop_empty_slabs() noexcept {
    bool any = false;
    for (uint32_t size_class = 0; size_class < size_class::kCount; ++size_class) {
      for (uint32_t number = partial[size_class]; number != kNone;) {
        uint32_t next = slabs[number].next;
        if (slabs[number].live == 0) {
          drop_slab(number);
          any = true;
        }
        number = next;
      }
    }
    return any;
  }

  void* allocate_small(PageHeap::Lock& lock, size_t bytes) {
    uint32_t size_class = size_class::of(bytes);
    while (partial[size_class] == kNone) {
      if (!make_slab(lock, size_class)) return nullptr;
    }
    uint32_t number = partial[size_class];
    Slab& slab = slabs[number];
    uint32_t slot = slab.free_slot;
    slab.free_slot = blocks[slot].next;
    ++slab.live;
    if (slab.free_slot == kNone) unlink(number);
    return bring_to_life(slot, bytes, size_class::kDivisions[size_class].bytes);
  }

  void* allocate(PageHeap::Lock& lock, size_t bytes) noexcept {
    if (abandoned) return nullptr;
    if (region->has_returns()) collect();
    for (bool again = false;; again = true) {
      void* block = nullptr;
      try {
        block = bytes <= size_class::kLargest ? allocate_small(lock, bytes)
                                              : allocate_large(lock, bytes);
      } catch (...) {  // no memory for our own bookkeeping
      }
      if (block != nullptr) return block;
      if (again || !drop_empty_slabs()) break;
    }
    ++failures;
    return nullptr;
  }

  void free_block(uint32_t slot) noexcept {
    Block& block = blocks[slot];
    block.flags = 0;
    --live_blocks;
    if (block.home == Block::kLarge) {
      auto start = static_cast<uint32_t>(block.data / kUnit);
      uint32_t count = pages.length(start);
      live_bytes -= size_t{count} * kUnit;
      mark_units(start, count, 0);
      blocks.give(kLargeKind, slot);
      pages.give(start);
      return;
    }
    Slab& slab = slabs[block.home];
    live_bytes -= size_class::kDivisions[slab.size_class].bytes;
    bool was_full = slab.free_slot == kNone;
    block.next = slab.free_slot;
    slab.free_slot = slot;
    --slab.live;
    if (was_full) link(block.home);
    // One slab of each class stays although it is empty: its next block comes at once.
    if (slab.live == 0 && (slab.next != kNone || slab.previous != kNone)) drop_slab(block.home);
  }

  void release(void* start) noexcept {
    if (abandoned) return;
    uint32_t slot = live_slot(start);
    if (slot == kNone || !(blocks[slot].flags & Block::kOwned)) {
      ++bad_releases;
      return;
    }
    Block& block = blocks[slot];
    if (!(block.flags & Block::kShared)) return free_block(slot);
    block.flags &= static_cast<uint8_t>(~Block::kOwned);
    int64_t left = region->header_at(header_offset(slot))->drop(block.generation);
    if (left == 0) free_block(slot);
    if (left < 0) ++bad_releases;  // its header was overwritten: it is never used again
  }

  // ---- leases ----

  // Room in the region for the headers of this slot's group.
  bool provide_header(PageHeap::Lock& lock, uint32_t slot) {
    uint32_t group = slot / kHeadersPerUnit;
    if (group >= header_units.size()) header_units.resize(group + 1, 0);
    if (header_units[group] != 0) return true;
    std::optional<uint32_t> unit = take_units(lock, 1);
    if (!unit) return false;
    if (header_units[group] != 0) {  // another thread was faster
      pages.give(*unit);
      return true;
    }
    std::memset(region->base() + uint64_t{*unit} * kUnit, 0, kUnit);
    unit_holds[*unit] = tag(Kind::kHeaders, group);
    header_units[group] = *unit;
    return true;
  }

  std::optional<Ref> share(PageHeap::Lock& lock, void* start) {
    auto owned_slot = [&] {
      uint32_t slot = abandoned ? kNone : live_slot(start);
      return slot != kNone && (blocks[slot].flags & Block::kOwned) ? slot : kNone;
    };
    uint32_t slot = owned_slot();
    if (slot == kNone || !provide_header(lock, slot) || owned_slot() != slot) return std::nullopt;
    Block& block = blocks[slot];
    uint64_t offset = header_offset(slot);
    BlockHeader* header = region->header_at(offset);
    header->data.store(block.data, std::memory_order_relaxed);
    header->bytes.store(block.bytes, std::memory_order_relaxed);
    if (block.flags & Block::kShared) {
      header->state.fetch_add(1, std::memory_order_acq_rel);
    } else {
      header->magic = BlockHeader::kMagic ^ offset;
      header->next.store(0, std::memory_order_relaxed);
      header->state.store(BlockHeader::state_of(block.generation, 2), std::memory_order_release);
      block.flags |= Block::kShared;
    }
    return Ref{offset, block.bytes, block.generation, 0};
  }

  // Frees what is on the return stack, checking every step: the links are in memory that other
  // processes write. A block that was freed is not live any more, so a circle ends.
  void collect() noexcept {
    for (uint64_t offset = region->take_returns(); offset != 0;) {
      uint64_t unit = offset / kUnit;
      BlockHeader* header = region->header_at(offset);
      uint32_t slot = kNone;
      if (header != nullptr && unit < unit_holds.size() &&
          kind_of(unit_holds[unit]) == Kind::kHeaders) {
        slot = index_of(unit_holds[unit]) * kHeadersPerUnit +
               static_cast<uint32_t>(offset % kUnit / sizeof(BlockHeader));
      }
      if (slot >= blocks.size() || blocks[slot].flags != (Block::kLive | Block::kShared) ||
          header->state.load(std::memory_order_acquire) !=
              BlockHeader::state_of(blocks[slot].generation, 0)) {
        ++bad_returns;
        return;
      }
      offset = header->next.load(std::memory_order_relaxed);
      free_block(slot);
    }
  }

  bool leased(uint32_t slot) const {
    if (!(blocks[slot].flags & Block::kShared)) return false;
    uint64_t state = region->header_at(header_offset(slot))->state.load(std::memory_order_acquire);
    return BlockHeader::references_of(state) > 1;
  }

  // ---- resizing ----

  // Whether the block now has room for `bytes` where it is, neither too little nor far too much.
  bool resize_in_place(PageHeap::Lock& lock, uint32_t slot, size_t bytes) {
    Block& block = blocks[slot];
    size_t room = capacity(block);
    if (block.home != Block::kLarge) {
      if (bytes > room || (bytes < room / 2 && !leased(slot))) return false;
    } else {
      auto start = static_cast<uint32_t>(block.data / kUnit);
      auto before = static_cast<uint32_t>(room / kUnit);
      size_t after = std::max<size_t>(units_for(bytes), 1);
      if (after > region->reserve() / kUnit) return false;
      if (after < before) {
        if (leased(slot))
          after = before;  // a lease sees it whole
        else if (bytes <= size_class::kLargest)
          return false;
      }
      if (after < before) {
        pages.shrink(start, static_cast<uint32_t>(after));
        mark_units(start + static_cast<uint32_t>(after), before - static_cast<uint32_t>(after), 0);
        live_bytes -= room - after * kUnit;
      } else if (after > before) {
        if (!pages.grow(lock, start, static_cast<uint32_t>(after))) return false;
        try {
          if (unit_holds.size() < pages.end()) unit_holds.resize(pages.end());
        } catch (...) {
          pages.shrink(start, before);
          throw;
        }
        mark_units(start + before, static_cast<uint32_t>(after) - before,
                   tag(Kind::kLargeBlock, slot));
        live_bytes += after * kUnit - room;
        peak_live_bytes = std::max(peak_live_bytes, live_bytes);
      }
    }
    blocks[slot].bytes = bytes;
    return true;
  }

  std::mutex mutex;
  std::shared_ptr<Region> region;
  PageHeap pages;
  BlockTable blocks;
  std::vector<uint32_t> unit_holds;    // by unit: tag()
  std::vector<uint32_t> header_units;  // by group of slots: unit of their headers, or 0
  std::vector<Slab> slabs;
  std::array<uint32_t, size_class::kCount> partial;  // slabs with a free block, by class
  uint32_t free_slab = kNone;
  uint32_t generation = 0;
  bool abandoned = false;
  uint64_t live_bytes = 0, peak_live_bytes = 0, live_blocks = 0;
  uint64_t allocations = 0, failures = 0, bad_releases = 0, bad_returns = 0;
};

Allocator::Allocator(std::shared_ptr<Region> region) : Allocator(std::move(region), Options()) {}

Allocator::Allocator(std::shared_ptr<Region> region, Options options) {
  if (region == nullptr || region->inherited() || region->committed() != Region::kFirstBlock) {
    throw Error(Code::kInvalidArgument, "Allocator",
                "needs a region that was created here and has no allocator yet");
  }
  impl_ = std::make_unique<Impl>(std::move(region), options);
}

Allocator::~Allocator() {
  PageHeap::Lock lock(impl_->mutex);
  if (impl_->abandoned || impl_->region.use_count() <= 2) return;  // ours and the page heap's
  // Leases outlive us. What they do not cover is of no more use.
  impl_->collect();
  impl_->drop_empty_slabs();
  impl_->pages.trim(UINT32_MAX);
}

const std::shared_ptr<Region>& Allocator::region() const { return impl_->region; }

void* Allocator::allocate(size_t bytes) noexcept {
  PageHeap::Lock lock(impl_->mutex);
  return impl_->allocate(lock, bytes);
}

void Allocator::release(void* block) noexcept {
  if (block == nullptr) return;
  PageHeap::Lock lock(impl_->mutex);
  impl_->release(block);
}

std::optional<Ref> Allocator::share(void* block) noexcept {
  PageHeap::Lock lock(impl_->mutex);
  try {
    return impl_->share(lock, block);
  } catch (...) {
    return std::nullopt;
  }
}

Lease Allocator::lease(void* block) {
  std::optional<Ref> ref = share(block);
  return ref ? Lease(impl_->region, *ref) : Lease();
}

void* Allocator::resize(void* block, size_t bytes) noexcept {
  PageHeap::Lock lock(impl_->mutex);
  if (block == nullptr) return impl_->allocate(lock, bytes);
  uint32_t slot = impl_->abandoned ? kNone : impl_->live_slot(block);
  if (slot == kNone || !(impl_->blocks[slot].flags & Block::kOwned)) {
    if (!impl_->abandoned) ++impl_->bad_releases;
    return nullptr;
  }
  bool fits = bytes <= impl_->capacity(impl_->blocks[slot]);
  try {
    if (impl_->resize_in_place(lock, slot, bytes)) return block;
  } catch (...) {
  }
  size_t keep = std::min<size_t>(bytes, impl_->blocks[slot].bytes);
  void* moved = impl_->allocate(lock, bytes);
  if (moved == nullptr) {
    if (!fits) return nullptr;
    impl_->blocks[slot].bytes = bytes;  // larger than it need be, but it serves
    return block;
  }
  lock.unlock();
  std::memcpy(moved, block, keep);
  lock.lock();
  impl_->release(block);
  return moved;
}

void* Allocator::block_of(const void* inside) const noexcept {
  PageHeap::Lock lock(impl_->mutex);
  uint32_t slot = impl_->slot_at(inside);
  if (slot == kNone || !(impl_->blocks[slot].flags & Block::kLive)) return nullptr;
  return impl_->region->base() + impl_->blocks[slot].data;
}

size_t Allocator::bytes_of(const void* block) const noexcept {
  PageHeap::Lock lock(impl_->mutex);
  uint32_t slot = impl_->live_slot(block);
  return slot == kNone ? 0 : impl_->blocks[slot].bytes;
}

bool Allocator::contains(const void* p) const noexcept { return impl_->region->contains(p); }

size_t Allocator::populate_ahead(size_t bytes) noexcept {
  PageHeap::Lock lock(impl_->mutex);
  if (impl_->abandoned) return 0;
  size_t most = impl_->region->reserve() / kUnit;
  auto units = static_cast<uint32_t>(std::min(units_for(bytes), most));
  try {
    return size_t{impl_->pages.populate_ahead(lock, units)} * kUnit;
  } catch (...) {
    return 0;
  }
}

void Allocator::collect() noexcept {
  PageHeap::Lock lock(impl_->mutex);
  if (!impl_->abandoned) impl_->collect();
}

Allocator::Stats Allocator::stats() const noexcept {
  PageHeap::Lock lock(impl_->mutex);
  const Impl& impl = *impl_;
  Stats stats;
  stats.live_bytes = impl.live_bytes;
  stats.live_blocks = impl.live_blocks;
  stats.committed_bytes = uint64_t{impl.pages.backed()} * kUnit;
  uint64_t headers = 0;
  for (uint32_t unit : impl.header_units) headers += unit != 0 ? kUnit : 0;
  uint64_t in_use = impl.live_bytes + headers;
  stats.free_bytes = stats.committed_bytes > in_use ? stats.committed_bytes - in_use : 0;
  stats.peak_live_bytes = impl.peak_live_bytes;
  stats.peak_committed_bytes = uint64_t{impl.pages.peak_backed()} * kUnit;
  stats.allocations = impl.allocations;
  stats.failures = impl.failures;
  stats.faulted_bytes = impl.pages.faulted() * kUnit;
  stats.bad_releases = impl.bad_releases;
  stats.stale_returns = impl.bad_returns + impl.region->stale_returns();
  return stats;
}

void Allocator::abandon() noexcept {
  PageHeap::Lock lock(impl_->mutex);
  impl_->abandoned = true;
}

}  // namespace penstock
