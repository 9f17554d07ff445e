#pragma once

#include <cstddef>
#include <memory>

#include "penstock/memory/ref.h"
#include "penstock/memory/region.h"

namespace penstock {

// The right to use a block. Nothing overwrites the block, and its memory stays mapped, while a copy
// of the handle exists, whatever becomes of the process that made the block. The last copy's end
// returns it through the region, from any thread, without waiting and without touching Python.
//
// In a child forked while it is held, the child's copy shows the data as they were mapped then and
// returns nothing when it ends: the block is still the parent's.
//
// Threads: copies are independent; one object is not synchronised (as std::shared_ptr).
class Lease {
 public:
  Lease() = default;

  // Takes over the one lease that `ref` stands for. Error kInternal if the region has no such block
  // or generation (nothing is returned then), kOutOfMemory if the block lies past what could be
  // mapped here (std::bad_alloc if there is no memory for the handle); it is returned then.
  Lease(std::shared_ptr<Region> region, const Ref& ref);

  std::byte* data() const { return block_.get(); }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return block_ != nullptr; }
  void reset() { *this = Lease(); }

  // The same lease for interfaces that want a shared owner.
  std::shared_ptr<void> owner() const { return block_; }

  // Leases that this process holds (copies of a handle count once).
  static size_t outstanding() noexcept;

 private:
  std::shared_ptr<std::byte> block_;  // points at the data, owns the lease
  size_t bytes_ = 0;
};

}  // namespace penstock
