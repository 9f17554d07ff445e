#include <algorithm>
#include <optional>

#include "penstock/memory/allocator_impl.h"

namespace penstock {

void Allocator::Impl::mark_units(uint32_t start, uint32_t count, uint32_t word) {
  std::fill_n(unit_holds.begin() + start, count, word);
}

std::optional<uint32_t> Allocator::Impl::take_units(PageHeap::Lock& lock, uint32_t count) {
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

void* Allocator::Impl::bring_to_life(uint32_t slot, size_t bytes, size_t rounded) {
  BlockRecord& block = blocks[slot];
  block.bytes = bytes;
  block.flags = BlockRecord::kLive | BlockRecord::kOwned;
  if (++generation == 0) ++generation;
  block.generation = generation;
  ++allocations;
  ++live_blocks;
  live_bytes += rounded;
  peak_live_bytes = std::max(peak_live_bytes, live_bytes);
  return region->base() + block.data;
}

void* Allocator::Impl::allocate_large(PageHeap::Lock& lock, size_t bytes) {
  size_t units = units_for(bytes);
  if (units > region->reserve() / kUnit) return nullptr;
  auto count = static_cast<uint32_t>(units);
  await_returns(lock, count);
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
  blocks[slot].home = BlockRecord::kLarge;
  void* block = bring_to_life(slot, bytes, units * kUnit);
  ledger.in_use.add(units * kUnit);
  balance();
  return block;
}

void Allocator::Impl::link(uint32_t number) noexcept {
  Slab& slab = slabs[number];
  slab.previous = kNone;
  slab.next = partial[slab.size_class];
  if (slab.next != kNone) slabs[slab.next].previous = number;
  partial[slab.size_class] = number;
}

void Allocator::Impl::unlink(uint32_t number) noexcept {
  Slab& slab = slabs[number];
  (slab.previous != kNone ? slabs[slab.previous].next : partial[slab.size_class]) = slab.next;
  if (slab.next != kNone) slabs[slab.next].previous = slab.previous;
}

bool Allocator::Impl::make_slab(PageHeap::Lock& lock, uint32_t size_class) {
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
    BlockRecord& block = blocks[first_slot + i];
    block = {};
    block.data = uint64_t{*start} * kUnit + uint64_t{i} * division.bytes;
    block.home = number;
    block.next = slabs[number].free_slot;
    slabs[number].free_slot = first_slot + i;
  }
  mark_units(*start, division.units, tag(Kind::kSlab, number));
  link(number);
  pages.add_idle(division.units);
  return true;
}

void Allocator::Impl::drop_slab(uint32_t number) noexcept {
  Slab& slab = slabs[number];
  unlink(number);
  pages.remove_idle(size_class::kDivisions[slab.size_class].units);
  mark_units(slab.start, size_class::kDivisions[slab.size_class].units, 0);
  blocks.give(slab.size_class, slab.first_slot);
  pages.give(slab.start);
  slab.next = free_slab;
  free_slab = number;
}

bool Allocator::Impl::drop_empty_slabs() noexcept {
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

void* Allocator::Impl::allocate_small(PageHeap::Lock& lock, size_t bytes) {
  uint32_t size_class = size_class::of(bytes);
  while (partial[size_class] == kNone) {
    if (!make_slab(lock, size_class)) return nullptr;
  }
  uint32_t number = partial[size_class];
  Slab& slab = slabs[number];
  uint32_t slot = slab.free_slot;
  slab.free_slot = blocks[slot].next;
  if (slab.live++ == 0) pages.remove_idle(size_class::kDivisions[size_class].units);
  if (slab.free_slot == kNone) unlink(number);
  small_bytes += size_class::kDivisions[size_class].bytes;
  return bring_to_life(slot, bytes, size_class::kDivisions[size_class].bytes);
}

void* Allocator::Impl::allocate(PageHeap::Lock& lock, size_t bytes) noexcept {
  if (abandoned) return nullptr;
  if (region->has_returns()) collect();
  for (bool again = false;; again = true) {
    void* block = nullptr;
    try {
      block =
          bytes <= size_class::kLargest ? allocate_small(lock, bytes) : allocate_large(lock, bytes);
    } catch (...) {  // no memory for our own bookkeeping
    }
    if (block != nullptr) return block;
    if (again || !drop_empty_slabs()) break;
  }
  ++failures;
  return nullptr;
}

void Allocator::Impl::free_block(uint32_t slot) noexcept {
  BlockRecord& block = blocks[slot];
  block.flags = 0;
  --live_blocks;
  if (block.home == BlockRecord::kLarge) {
    auto start = static_cast<uint32_t>(block.data / kUnit);
    uint32_t count = pages.length(start);
    live_bytes -= size_t{count} * kUnit;
    mark_units(start, count, 0);
    blocks.give(kLargeKind, slot);
    pages.give(start);
    balance();
    return;
  }
  Slab& slab = slabs[block.home];
  live_bytes -= size_class::kDivisions[slab.size_class].bytes;
  small_bytes -= size_class::kDivisions[slab.size_class].bytes;
  bool was_full = slab.free_slot == kNone;
  block.next = slab.free_slot;
  slab.free_slot = slot;
  --slab.live;
  if (was_full) link(block.home);
  if (slab.live > 0) return;
  // One slab of each class stays although it is empty: its next block comes at once.
  uint32_t units = size_class::kDivisions[slab.size_class].units;
  bool only_one = slab.next == kNone && slab.previous == kNone;
  pages.add_idle(units);
  if (!only_one || !pages.may_idle(0)) drop_slab(block.home);
}

void Allocator::Impl::release(void* start) noexcept {
  if (abandoned) return;
  uint32_t slot = live_slot(start);
  if (slot == kNone || !(blocks[slot].flags & BlockRecord::kOwned)) {
    ++bad_releases;
    return;
  }
  BlockRecord& block = blocks[slot];
  int64_t left = 0;
  if (block.flags & BlockRecord::kShared) {
    block.flags &= static_cast<uint8_t>(~BlockRecord::kOwned);
    left = region->header_at(header_offset(slot))->drop(block.generation);
  }
  if (left < 0) ++bad_releases;  // its header was overwritten: it is never used again
  if (left > 0 && block.home == BlockRecord::kLarge) ++lent;
  if (left != 0) return;
  ledger.in_use.take_off(counted(block));
  free_block(slot);
}

void Allocator::Impl::balance() noexcept {
  if (ledger.entries == nullptr) return;
  uint64_t backed = uint64_t{pages.backed()} * kUnit;
  uint64_t excess = ledger.excess(small_bytes, backed);
  if (excess > 0) pages.trim(static_cast<uint32_t>(std::min<uint64_t>(excess / kUnit, UINT32_MAX)));
}

bool Allocator::Impl::resize_in_place(PageHeap::Lock& lock, uint32_t slot, size_t bytes) {
  size_t room = capacity(blocks[slot]);
  if (blocks[slot].home != BlockRecord::kLarge) {
    if (bytes > room || (bytes < room / 2 && !leased(slot))) return false;
  } else {
    auto start = static_cast<uint32_t>(blocks[slot].data / kUnit);
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
      ledger.in_use.take_off(room - after * kUnit);
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
      ledger.in_use.add(after * kUnit - room);
      peak_live_bytes = std::max(peak_live_bytes, live_bytes);
    }
  }
  blocks[slot].bytes = bytes;
  if (blocks[slot].flags & BlockRecord::kShared) {
    region->header_at(header_offset(slot))
        ->counted.store(counted(blocks[slot]), std::memory_order_relaxed);
  }
  return true;
}

}  // namespace penstock
