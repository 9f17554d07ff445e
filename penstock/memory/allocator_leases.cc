#include <algorithm>
#include <chrono>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/memory/allocator_impl.h"

namespace penstock {
namespace {

constexpr uint32_t kWorthWaiting = 64;  // units: 4 MiB, whose pages take about a millisecond

}  // namespace

bool Allocator::Impl::provide_header(PageHeap::Lock& lock, uint32_t slot) {
  uint32_t group = slot / kHeadersPerUnit;
  if (group >= header_units.size()) header_units.resize(group + 1, 0);
  if (header_units[group] != 0) return true;
  std::optional<uint32_t> unit = take_units(lock, 1);
  if (!unit) return false;
  if (header_units[group] != 0) {  // another thread was faster
    pages.give(*unit);
    return true;
  }
  uint64_t first = uint64_t{*unit} * kUnit;
  for (uint64_t offset = first; offset < first + kUnit; offset += sizeof(BlockHeader)) {
    new (region->base() + offset) BlockHeader{};
    region->header_at(offset)->magic = BlockHeader::kMagic ^ offset;
  }
  unit_holds[*unit] = tag(Kind::kHeaders, group);
  header_units[group] = *unit;
  return true;
}

std::optional<Ref> Allocator::Impl::share(PageHeap::Lock& lock, void* start) {
  auto owned_slot = [&] {
    uint32_t slot = abandoned ? kNone : live_slot(start);
    return slot != kNone && (blocks[slot].flags & BlockRecord::kOwned) ? slot : kNone;
  };
  uint32_t slot = owned_slot();
  if (slot == kNone || !provide_header(lock, slot) || owned_slot() != slot) return std::nullopt;
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

void Allocator::Impl::collect() noexcept {
  for (uint64_t offset = region->take_returns(); offset != 0;) {
    uint64_t unit = offset / kUnit;
    BlockHeader* header = region->header_at(offset);
    uint32_t slot = kNone;
    if (header != nullptr && unit < unit_holds.size() &&
        kind_of(unit_holds[unit]) == Kind::kHeaders) {
      slot = index_of(unit_holds[unit]) * kHeadersPerUnit +
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
    if (blocks[slot].home == BlockRecord::kLarge) came_back(slot);
    free_block(slot);
  }
}

// Of blocks of several sizes the largest counts, as long as it keeps coming.
void Allocator::Impl::came_back(uint32_t slot) {
  if (lent > 0) --lent;  // a lease that came back twice was not counted
  const uint32_t units = pages.length(static_cast<uint32_t>(blocks[slot].data / kUnit));
  const uint64_t now = now_ns();
  if (units < returned_units && now - returned_ns < pages.fault_ns_of(returned_units)) return;
  returned_units = units;
  returned_ns = now;
}

void Allocator::Impl::await_returns(PageHeap::Lock& lock, uint32_t count) {
  using namespace std::chrono_literals;
  if (!patient || count < kWorthWaiting || count > returned_units) return;
  const uint64_t cost = pages.fault_ns(count);
  const bool in_turn = std::exchange(came_at_once, cost == 0);
  const uint64_t begun = now_ns();
  const auto waited = [&] { return now_ns() - begun; };
  if (begun - returned_ns < cost && waited_ns < cost) {
    ++waits;
    for (uint64_t most = cost; lent > 0 && waited() < most; most = pages.fault_ns(count)) {
      lock.unlock();
      std::this_thread::sleep_for(100us);
      lock.lock();
      if (region->has_returns()) collect();
    }
    // Who had to wait for a moment only this time is ahead and behind in turn: that is no want.
    const uint64_t spent = waited();
    waited_ns += in_turn ? spent - std::min(spent, cost / 16) : spent;
  }
  if (pages.fault_ns(count) > 0) waited_ns = 0;  // it grows
}

bool Allocator::Impl::leased(uint32_t slot) const {
  if (!(blocks[slot].flags & BlockRecord::kShared)) return false;
  uint64_t state = region->header_at(header_offset(slot))->state.load(std::memory_order_acquire);
  return BlockHeader::references_of(state) > 1;
}

}  // namespace penstock
