#pragma once

#include <cstddef>
#include <memory>

#include "penstock/memory/region.h"

namespace penstock {

// The right to use a block. While a copy of the handle exists, the block is not overwritten and its
// memory stays mapped, even if the process that made the block dies. Destroying the last copy
// returns the lease through the region, from any thread, without waiting and without touching
// Python.
//
// A forked child's copy shows the data as it was mapped at the fork. Destroying that copy returns
// nothing: the lease still belongs to the parent.
//
// Threads: copies are independent; one object is not synchronised (as std::shared_ptr).
class Lease {
 public:
  Lease() = default;

  // Takes ownership of the lease that `ref` represents. Error kInternal if the region has no such
  // block or generation; the lease is not returned then. kOutOfMemory if the block lies beyond the
  // memory mapped here, or std::bad_alloc; the lease is returned then.
  Lease(std::shared_ptr<Region> region, const Ref& ref);

  std::byte* data() const { return block_.get(); }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return block_ != nullptr; }
  void reset() { *this = Lease(); }

  // The same lease, for interfaces that take a shared owner.
  std::shared_ptr<void> owner() const { return block_; }

  // The number of leases that this process holds; copies of a handle count once.
  static size_t outstanding() noexcept;

 private:
  std::shared_ptr<std::byte> block_;  // points at the data, owns the lease
  size_t bytes_ = 0;
};

}  // namespace penstock
