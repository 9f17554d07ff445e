#include "penstock/memory/allocator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/fork_aware.h"
#include "penstock/memory/block_table.h"
#include "penstock/memory/page_heap.h"
#include "penstock/memory/region_layout.h"

namespace penstock {
namespace {

constexpr uint32_t kMinUnitsToWait = 64;  // 4 MiB, whose pages take about a millisecond

}  // namespace

// Every member is called with `mutex` held. Members that take it as `lock` release it while
// PageHeap faults pages in, so state that was read before such a call may have changed after it.
struct Allocator::Impl final : ForkAware {
  static constexpr size_t kUnit = PageHeap::kUnit;
  static constexpr uint32_t kNone = BlockTable::kNone;
  static constexpr uint32_t kLargeKind = size_class::kCount;  // of slots, after the slabs' kinds
  static constexpr uint32_t kHeadersPerUnit = kUnit / sizeof(BlockHeader);
  static_assert(kUnit == size_class::kUnit);

  // The contents of a unit of the region, in one word: two bits of kind above an index.
  enum class Kind : uint32_t {
    kNothing = 0,
    kSlab = 1,        // number of the slab
    kLargeBlock = 2,  // slot of the block
    kHeaders = 3,     // the group of slots whose headers are here
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
        pages(region, {options.retain, options.max_bytes, options.soft_limit}),
        blocks(size_class::kCount + 1),
        ledger(options.ledger),
        wait_for_returns(options.wait_for_returns) {
    partial.fill(kNone);
    ledger.in_use.reset();
    region->set_in_use_counter(ledger.in_use);
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

  // The block that contains this address, live or not; kNone: no block.
  uint32_t slot_at(const void* address) const noexcept {
    if (!region->contains(address)) return kNone;
    uint64_t offset = region->offset_of(address);
    uint64_t unit = offset / kUnit;
    if (unit >= unit_contents.size()) return kNone;
    uint32_t word = unit_contents[unit];
    if (kind_of(word) == Kind::kLargeBlock) return index_of(word);
    if (kind_of(word) != Kind::kSlab) return kNone;
    const Slab& slab = slabs[index_of(word)];
    const size_class::Division& division = size_class::kDivisions[slab.size_class];
    uint32_t index = division.index(offset - uint64_t{slab.start} * kUnit);
    return index < division.blocks ? slab.first_slot + index : kNone;
  }

  // The live block that starts at this address.
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

  // ---- blocks ----

  void mark_units(uint32_t start, uint32_t count, uint32_t word);
  std::optional<uint32_t> allocate_units(PageHeap::Lock& lock, uint32_t count);
  void* activate(uint32_t slot, size_t bytes, size_t rounded);
  void* allocate_large(PageHeap::Lock& lock, size_t bytes);
  // Adds to, or removes from, the list of its class's slabs with a free block.
  void link(uint32_t number) noexcept;
  void unlink(uint32_t number) noexcept;
  bool make_slab(PageHeap::Lock& lock, uint32_t size_class);
  void drop_slab(uint32_t number) noexcept;  // REQUIRED: the slab is empty
  // Frees empty slabs that are kept for reuse, when other allocations need the memory. Returns
  // whether there were any.
  bool drop_empty_slabs() noexcept;
  void* allocate_small(PageHeap::Lock& lock, size_t bytes);
  void* allocate(PageHeap::Lock& lock, size_t bytes) noexcept;
  bool has_pages_for(size_t bytes) noexcept;
  // The bytes that this block adds to ledger.in_use.
  uint64_t counted(const BlockRecord& block) const {
    return block.home == BlockRecord::kLarge ? capacity(block) : 0;
  }
  void free_block(uint32_t slot) noexcept;  // REQUIRED: already subtracted from ledger.in_use
  void release(void* start) noexcept;
  // Updates the ledger, and returns pages if all allocators together hold too many.
  void balance_with_ledger() noexcept;
  // Resizes in place. False: the block is too small, or far too large, for `bytes`.
  bool resize_in_place(PageHeap::Lock& lock, uint32_t slot, size_t bytes);

  // ---- leases ----

  // Allocates the headers of this slot's group if necessary. False: no memory.
  bool ensure_header(PageHeap::Lock& lock, uint32_t slot);
  std::optional<Ref> share(PageHeap::Lock& lock, void* start);
  std::optional<Ref> share_again(uint32_t slot);
  // Frees the blocks on the return stack. Checks every link, since other processes can write them.
  // A freed block is not live any more, so a cycle ends.
  void collect() noexcept;
  void on_block_returned(uint32_t slot);
  // Options::wait_for_returns. All waits since the region last grew together take at most as long
  // as faulting the pages in (the ski rental problem). So the cost is at most twice the optimum,
  // and a longer queue eventually gets its blocks.
  void await_returns(PageHeap::Lock& lock, uint32_t count);
  // True if an unreleased block has outstanding leases.
  bool leased(uint32_t slot) const;

  std::mutex mutex;
  std::shared_ptr<Region> region;
  PageHeap pages;
  BlockTable blocks;
  const Ledger ledger;
  const bool wait_for_returns;
  std::vector<uint32_t> unit_contents;  // by unit: tag()
  std::vector<uint32_t> header_units;   // by group of slots: unit of their headers, or 0
  std::vector<Slab> slabs;
  std::array<uint32_t, size_class::kCount> partial;  // slabs with a free block, by class
  uint32_t free_slab = kNone;
  uint32_t generation = 0;
  bool abandoned = false;
  uint64_t live_bytes = 0, small_bytes = 0, peak_live_bytes = 0, live_blocks = 0;
  // Of large blocks: how many are released but still leased; when one was last reclaimed, and its
  // units; for how long returns were waited for since.
  uint64_t leased_blocks = 0, returned_ns = 0, waited_ns = 0;
  uint32_t returned_units = 0;
  bool last_was_immediate = false;  // the previous allocation needed no page faults
  uint64_t waits = 0;
  uint64_t allocations = 0, failures = 0, bad_releases = 0, bad_returns = 0;
};

// ---- blocks -------------------------------------------------------------------------------------

void Allocator::Impl::mark_units(uint32_t start, uint32_t count, uint32_t word) {
  std::fill_n(unit_contents.begin() + start, count, word);
}

std::optional<uint32_t> Allocator::Impl::allocate_units(PageHeap::Lock& lock, uint32_t count) {
  std::optional<uint32_t> start = pages.allocate(lock, count);
  if (!start) return start;
  try {
    if (unit_contents.size() < pages.end()) unit_contents.resize(pages.end());
  } catch (...) {
    pages.release(*start);
    throw;
  }
  return start;
}

void* Allocator::Impl::activate(uint32_t slot, size_t bytes, size_t rounded) {
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
  uint32_t slot = blocks.allocate(kLargeKind, 1);
  std::optional<uint32_t> start;
  try {
    start = allocate_units(lock, count);
  } catch (...) {
    blocks.release(kLargeKind, slot);
    throw;
  }
  if (!start) {
    blocks.release(kLargeKind, slot);
    return nullptr;
  }
  mark_units(*start, count, tag(Kind::kLargeBlock, slot));
  blocks[slot].data = uint64_t{*start} * kUnit;
  blocks[slot].home = BlockRecord::kLarge;
  void* block = activate(slot, bytes, units * kUnit);
  ledger.in_use.add(units * kUnit);
  balance_with_ledger();
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
  std::optional<uint32_t> start = allocate_units(lock, division.units);
  if (!start) return false;
  uint32_t number = free_slab;
  uint32_t first_slot = kNone;
  try {
    first_slot = blocks.allocate(size_class, division.blocks);
    if (number == kNone) {
      slabs.emplace_back();
      number = static_cast<uint32_t>(slabs.size() - 1);
    } else {
      free_slab = slabs[number].next;
    }
  } catch (...) {
    if (first_slot != kNone) blocks.release(size_class, first_slot);
    pages.release(*start);
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
  blocks.release(slab.size_class, slab.first_slot);
  pages.release(slab.start);
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
  return activate(slot, bytes, size_class::kDivisions[size_class].bytes);
}

void* Allocator::Impl::allocate(PageHeap::Lock& lock, size_t bytes) noexcept {
  if (abandoned) return nullptr;
  if (region->has_returns()) collect();
  for (bool again = false;; again = true) {
    void* block = nullptr;
    try {
      block =
          bytes <= size_class::kLargest ? allocate_small(lock, bytes) : allocate_large(lock, bytes);
    } catch (...) {  // no memory for the bookkeeping
    }
    if (block != nullptr) return block;
    if (again || !drop_empty_slabs()) break;
  }
  ++failures;
  return nullptr;
}

bool Allocator::Impl::has_pages_for(size_t bytes) noexcept {
  if (abandoned || bytes <= size_class::kLargest) return true;
  if (region->has_returns()) collect();
  const size_t units = units_for(bytes);
  return units <= UINT32_MAX && pages.missing(static_cast<uint32_t>(units)) == 0;
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
    blocks.release(kLargeKind, slot);
    pages.release(start);
    balance_with_ledger();
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
  // Keep one empty slab of each class, to make the next allocation fast.
  uint32_t units = size_class::kDivisions[slab.size_class].units;
  bool only_one = slab.next == kNone && slab.previous == kNone;
  pages.add_idle(units);
  if (!only_one || !pages.can_keep_idle(0)) drop_slab(block.home);
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
  if (left < 0) ++bad_releases;  // the header was overwritten: the block is never reused
  if (left > 0 && block.home == BlockRecord::kLarge) ++leased_blocks;
  if (left != 0) return;
  ledger.in_use.subtract(counted(block));
  free_block(slot);
}

void Allocator::Impl::balance_with_ledger() noexcept {
  if (ledger.entries == nullptr) return;
  uint64_t backed = uint64_t{pages.backed()} * kUnit;
  uint64_t excess = ledger.excess(small_bytes, backed);
  if (excess > 0) pages.trim(static_cast<uint32_t>(std::min<uint64_t>(excess / kUnit, UINT32_MAX)));
}

bool Allocator::Impl::resize_in_place(PageHeap::Lock& lock, uint32_t slot, size_t bytes) {
  size_t capacity_now = capacity(blocks[slot]);
  if (blocks[slot].home != BlockRecord::kLarge) {
    if (bytes > capacity_now || (bytes < capacity_now / 2 && !leased(slot))) return false;
  } else {
    auto start = static_cast<uint32_t>(blocks[slot].data / kUnit);
    auto before = static_cast<uint32_t>(capacity_now / kUnit);
    size_t after = std::max<size_t>(units_for(bytes), 1);
    if (after > region->reserve() / kUnit) return false;
    if (after < before) {
      if (leased(slot))
        after = before;  // a lease refers to the whole block
      else if (bytes <= size_class::kLargest)
        return false;
    }
    if (after < before) {
      pages.shrink(start, static_cast<uint32_t>(after));
      mark_units(start + static_cast<uint32_t>(after), before - static_cast<uint32_t>(after), 0);
      live_bytes -= capacity_now - after * kUnit;
      ledger.in_use.subtract(capacity_now - after * kUnit);
    } else if (after > before) {
      if (!pages.grow(lock, start, static_cast<uint32_t>(after))) return false;
      try {
        if (unit_contents.size() < pages.end()) unit_contents.resize(pages.end());
      } catch (...) {
        pages.shrink(start, before);
        throw;
      }
      mark_units(start + before, static_cast<uint32_t>(after) - before,
                 tag(Kind::kLargeBlock, slot));
      live_bytes += after * kUnit - capacity_now;
      ledger.in_use.add(after * kUnit - capacity_now);
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

// ---- leases -------------------------------------------------------------------------------------

bool Allocator::Impl::ensure_header(PageHeap::Lock& lock, uint32_t slot) {
  uint32_t group = slot / kHeadersPerUnit;
  if (group >= header_units.size()) header_units.resize(group + 1, 0);
  if (header_units[group] != 0) return true;
  std::optional<uint32_t> unit = allocate_units(lock, 1);
  if (!unit) return false;
  if (header_units[group] != 0) {  // another thread allocated it first
    pages.release(*unit);
    return true;
  }
  uint64_t first = uint64_t{*unit} * kUnit;
  for (uint64_t offset = first; offset < first + kUnit; offset += sizeof(BlockHeader)) {
    new (region->base() + offset) BlockHeader{};
    region->header_at(offset)->magic = BlockHeader::kMagic ^ offset;
  }
  unit_contents[*unit] = tag(Kind::kHeaders, group);
  header_units[group] = *unit;
  return true;
}

std::optional<Ref> Allocator::Impl::share(PageHeap::Lock& lock, void* start) {
  auto owned_slot = [&] {
    uint32_t slot = abandoned ? kNone : live_slot(start);
    return slot != kNone && (blocks[slot].flags & BlockRecord::kOwned) ? slot : kNone;
  };
  uint32_t slot = owned_slot();
  if (slot == kNone || !ensure_header(lock, slot) || owned_slot() != slot) return std::nullopt;
  BlockRecord& block = blocks[slot];
  uint64_t offset = header_offset(slot);
  BlockHeader* header = region->header_at(offset);
  header->data.store(block.data, std::memory_order_relaxed);
  header->bytes.store(block.bytes, std::memory_order_relaxed);
  header->counted.store(counted(block), std::memory_order_relaxed);
  if (block.flags & BlockRecord::kShared) {
    header->state.fetch_add(1, std::memory_order_acq_rel);
  } else {
    header->next.store(0, std::memory_order_relaxed);
    header->state.store(BlockHeader::state_of(block.generation, 2), std::memory_order_release);
    block.flags |= BlockRecord::kShared;
  }
  return Ref{offset, block.bytes, block.generation, 0};
}

// Adds a lease to a released block that still has one.
std::optional<Ref> Allocator::Impl::share_again(uint32_t slot) {
  const BlockRecord& block = blocks[slot];
  const uint64_t offset = header_offset(slot);
  if (!region->header_at(offset)->add(block.generation)) return std::nullopt;
  return Ref{offset, block.bytes, block.generation, 0};
}

void Allocator::Impl::collect() noexcept {
  for (uint64_t offset = region->take_returns(); offset != 0;) {
    uint64_t unit = offset / kUnit;
    BlockHeader* header = region->header_at(offset);
    uint32_t slot = kNone;
    if (header != nullptr && unit < unit_contents.size() &&
        kind_of(unit_contents[unit]) == Kind::kHeaders) {
      slot = index_of(unit_contents[unit]) * kHeadersPerUnit +
             static_cast<uint32_t>(offset % kUnit / sizeof(BlockHeader));
    }
    if (slot >= blocks.size() ||
        blocks[slot].flags != (BlockRecord::kLive | BlockRecord::kShared) ||
        header->state.load(std::memory_order_acquire) !=
            BlockHeader::state_of(blocks[slot].generation, 0)) {
      ++bad_returns;
      return;
    }
    offset = header->next.load(std::memory_order_relaxed);
    if (blocks[slot].home == BlockRecord::kLarge) on_block_returned(slot);
    free_block(slot);
  }
}

// With blocks of several sizes, tracks the largest one that is still being returned.
void Allocator::Impl::on_block_returned(uint32_t slot) {
  if (leased_blocks > 0) --leased_blocks;  // a duplicate return was not counted
  const uint32_t units = pages.length(static_cast<uint32_t>(blocks[slot].data / kUnit));
  const uint64_t now = now_ns();
  if (units < returned_units && now - returned_ns < pages.fault_ns_of(returned_units)) return;
  returned_units = units;
  returned_ns = now;
}

void Allocator::Impl::await_returns(PageHeap::Lock& lock, uint32_t count) {
  using namespace std::chrono_literals;
  if (!wait_for_returns || count < kMinUnitsToWait || count > returned_units) return;
  const uint64_t cost = pages.fault_ns(count);
  const bool was_immediate = std::exchange(last_was_immediate, cost == 0);
  const uint64_t begun = now_ns();
  const auto waited = [&] { return now_ns() - begun; };
  if (begun - returned_ns < cost && waited_ns < cost) {
    ++waits;
    for (uint64_t most = cost; leased_blocks > 0 && waited() < most; most = pages.fault_ns(count)) {
      lock.unlock();
      std::this_thread::sleep_for(100us);
      lock.lock();
      if (region->has_returns()) collect();
    }
    // Workers that alternate between waiting and not waiting are merely ahead for a moment. Do not
    // count such short waits towards growing.
    const uint64_t spent = waited();
    waited_ns += was_immediate ? spent - std::min(spent, cost / 16) : spent;
  }
  if (pages.fault_ns(count) > 0) waited_ns = 0;  // the region grows now
}

bool Allocator::Impl::leased(uint32_t slot) const {
  if (!(blocks[slot].flags & BlockRecord::kShared)) return false;
  uint64_t state = region->header_at(header_offset(slot))->state.load(std::memory_order_acquire);
  return BlockHeader::references_of(state) > 1;
}

// ---- the public interface -----------------------------------------------------------------------

Allocator::Allocator(std::shared_ptr<Region> region) : Allocator(std::move(region), Options()) {}

Allocator::Allocator(std::shared_ptr<Region> region, Options options) {
  if (region == nullptr || region->inherited() || region->committed() != Region::kFirstBlock) {
    throw Error(Code::kInvalidArgument, "Allocator",
                "needs a region that this process created and that has no allocator yet");
  }
  impl_ = std::make_unique<Impl>(std::move(region), options);
}

Allocator::~Allocator() {
  PageHeap::Lock lock(impl_->mutex);
  if (impl_->abandoned || impl_->region.use_count() <= 2)
    return;  // this allocator's and the page heap's
  // Leases outlive the allocator. Pages of other blocks are not needed any more.
  impl_->collect();
  impl_->drop_empty_slabs();
  impl_->pages.trim(UINT32_MAX);
}

const std::shared_ptr<Region>& Allocator::region() const { return impl_->region; }

void* Allocator::allocate(size_t bytes) noexcept {
  PageHeap::Lock lock(impl_->mutex);
  return impl_->allocate(lock, bytes);
}

void* Allocator::allocate_without_faults(size_t bytes) noexcept {
  PageHeap::Lock lock(impl_->mutex);
  return impl_->has_pages_for(bytes) ? impl_->allocate(lock, bytes) : nullptr;
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

std::optional<Ref> Allocator::share_holding(const void* inside) noexcept {
  PageHeap::Lock lock(impl_->mutex);
  const uint32_t slot = impl_->abandoned ? Impl::kNone : impl_->slot_at(inside);
  if (slot == Impl::kNone || !(impl_->blocks[slot].flags & BlockRecord::kLive)) return std::nullopt;
  const BlockRecord& block = impl_->blocks[slot];
  if (!(block.flags & BlockRecord::kOwned)) return impl_->share_again(slot);
  try {
    return impl_->share(lock, impl_->region->base() + block.data);
  } catch (...) {
    return std::nullopt;
  }
}

void* Allocator::resize(void* block, size_t bytes) noexcept {
  PageHeap::Lock lock(impl_->mutex);
  if (block == nullptr) return impl_->allocate(lock, bytes);
  uint32_t slot = impl_->abandoned ? Impl::kNone : impl_->live_slot(block);
  if (slot == Impl::kNone || !(impl_->blocks[slot].flags & BlockRecord::kOwned)) {
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
    impl_->blocks[slot].bytes = bytes;  // keep the block, although it is larger than necessary
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
  if (slot == Impl::kNone || !(impl_->blocks[slot].flags & BlockRecord::kLive)) return nullptr;
  return impl_->region->base() + impl_->blocks[slot].data;
}

size_t Allocator::bytes_of(const void* block) const noexcept {
  PageHeap::Lock lock(impl_->mutex);
  uint32_t slot = impl_->live_slot(block);
  return slot == Impl::kNone ? 0 : impl_->blocks[slot].bytes;
}

bool Allocator::contains(const void* p) const noexcept { return impl_->region->contains(p); }

void Allocator::trim() noexcept {
  PageHeap::Lock lock(impl_->mutex);
  if (impl_->abandoned) return;
  impl_->collect();
  impl_->drop_empty_slabs();
  impl_->pages.trim(UINT32_MAX);
}

void Allocator::collect() noexcept {
  PageHeap::Lock lock(impl_->mutex);
  if (impl_->abandoned) return;
  impl_->collect();
  impl_->balance_with_ledger();
}

Allocator::Stats Allocator::stats() const noexcept {
  PageHeap::Lock lock(impl_->mutex);
  const Impl& impl = *impl_;
  Stats stats;
  stats.live_bytes = impl.live_bytes;
  stats.live_blocks = impl.live_blocks;
  stats.committed_bytes = uint64_t{impl.pages.backed()} * Impl::kUnit;
  uint64_t headers = 0;
  for (uint32_t unit : impl.header_units) headers += unit != 0 ? Impl::kUnit : 0;
  uint64_t in_use = impl.live_bytes + headers;
  stats.free_bytes = stats.committed_bytes > in_use ? stats.committed_bytes - in_use : 0;
  stats.peak_live_bytes = impl.peak_live_bytes;
  stats.peak_committed_bytes = uint64_t{impl.pages.peak_backed()} * Impl::kUnit;
  stats.allocations = impl.allocations;
  stats.failures = impl.failures;
  stats.faulted_bytes = impl.pages.faulted() * Impl::kUnit;
  stats.waits = impl.waits;
  stats.bad_releases = impl.bad_releases;
  stats.stale_returns = impl.bad_returns + impl.region->stale_returns();
  return stats;
}

}  // namespace penstock
