#include "penstock/memory/lease.h"

#include <atomic>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/memory/region_layout.h"

namespace penstock {
namespace {

constinit std::atomic<size_t> leases_outstanding{0};

// Returns the lease when destroyed, on any thread. So the destructor must not allocate, lock or
// throw (except that the last lease unmaps the region).
class HeldLease {
 public:
  HeldLease(std::shared_ptr<Region> region, const Ref& ref)
      : region_(std::move(region)), ref_(ref) {
    leases_outstanding.fetch_add(1, std::memory_order_relaxed);
  }
  ~HeldLease() {
    leases_outstanding.fetch_sub(1, std::memory_order_relaxed);
    region_->return_lease(ref_);
  }
  HeldLease(const HeldLease&) = delete;
  HeldLease& operator=(const HeldLease&) = delete;

 private:
  std::shared_ptr<Region> region_;
  Ref ref_;
};

}  // namespace

Lease::Lease(std::shared_ptr<Region> region, const Ref& ref) {
  auto refuse = [&ref](Code code, const char* why) {
    return Error(code, "Lease",
                 why + (" (offset " + std::to_string(ref.offset)) + ", generation " +
                     std::to_string(ref.generation) + ")");
  };
  if (region == nullptr) throw refuse(Code::kInternal, "no region");
  const BlockHeader* block = region->header_at(ref.offset);
  if (block == nullptr) {
    // The allocator has committed it, but beyond the address space that this process reserved.
    if (ref.offset >= region->reserve()) {
      throw refuse(Code::kOutOfMemory,
                   "the block lies beyond the address space reserved in this process");
    }
    throw refuse(Code::kInternal, "the offset is no block's");
  }
  uint64_t state = block->state.load(std::memory_order_acquire);
  if (block->magic != (BlockHeader::kMagic ^ ref.offset) ||
      BlockHeader::generation_of(state) != ref.generation ||
      BlockHeader::references_of(state) == 0) {
    throw refuse(Code::kInternal, "the block does not have the reference's generation (any more)");
  }
  uint64_t data = block->data.load(std::memory_order_relaxed);
  uint64_t bytes = block->bytes.load(std::memory_order_relaxed);
  if (data < Region::kFirstBlock || ref.bytes > bytes || bytes > UINT64_MAX - data) {
    throw refuse(Code::kInternal, "the block's header is damaged");
  }
  if (data + bytes > region->reserve()) {
    region->return_lease(ref);
    throw refuse(Code::kOutOfMemory,
                 "the block lies beyond the address space reserved in this process");
  }
  if (data + bytes > region->committed()) {
    throw refuse(Code::kInternal, "the block's header is damaged");
  }
  std::byte* start = region->base() + data;
  std::shared_ptr<HeldLease> held;
  try {
    held = std::make_shared<HeldLease>(region, ref);
  } catch (...) {
    region->return_lease(ref);
    throw;
  }
  block_ = std::shared_ptr<std::byte>(std::move(held), start);
  bytes_ = ref.bytes;
}

size_t Lease::outstanding() noexcept { return leases_outstanding.load(std::memory_order_relaxed); }

}  // namespace penstock
