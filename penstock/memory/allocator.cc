#include "penstock/memory/allocator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/allocator_impl.h"

namespace penstock {

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
  impl_->balance();
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
