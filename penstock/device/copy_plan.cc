#include "penstock/device/copy_plan.h"

#include <algorithm>
#include <cstdint>

#include "penstock/device/pins.h"
#include "penstock/memory/region.h"

namespace penstock::device {
namespace {

constexpr size_t kAlignment = 256;  // of arrays in a slot, as of the driver's own allocations
constexpr size_t kDirect = size_t{64} << 10;  // arrays from this size on get a copy of their own
constexpr size_t kMaxGap = size_t{4} << 10;   // that a copy takes along, besides an eighth

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

CopyPlan CopyPlanner::plan(const std::vector<Tensor>& tensors) {
  CopyPlan plan;
  plan.offsets.resize(tensors.size());
  if (plan_as_one(tensors, plan)) return plan;
  std::vector<size_t> direct;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (tensor.nbytes() >= kDirect && tensor.is_contiguous() &&
        pinned_from(tensor.data(), tensor.nbytes()) != 0) {
      direct.push_back(i);
      continue;
    }
    plan.offsets[i] = plan.gathered;
    plan.gathered = aligned(plan.gathered + tensor.nbytes());
    plan.gather.push_back(i);
  }
  plan.bytes = plan.gathered;
  for (size_t i : direct) {
    plan.offsets[i] = plan.bytes;
    add_pieces(plan, tensors[i].data(), plan.bytes, tensors[i].nbytes());
    plan.owners.push_back(tensors[i].owner());
    plan.bytes = aligned(plan.bytes + tensors[i].nbytes());
  }
  return plan;
}

// One copy for all arrays, if they lie together in pinned memory.
bool CopyPlanner::plan_as_one(const std::vector<Tensor>& tensors, CopyPlan& plan) {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  size_t sum = 0;
  for (const Tensor& tensor : tensors) {
    const size_t bytes = tensor.nbytes();
    if (bytes == 0) continue;
    if (!tensor.is_contiguous()) return false;
    begin = begin == nullptr ? tensor.data() : std::min<const std::byte*>(begin, tensor.data());
    end = std::max<const std::byte*>(end, tensor.data() + bytes);
    sum += bytes;
  }
  if (begin == nullptr) return false;
  // Arrays keep their alignment. The region begins with a header, so this stays within.
  begin -= reinterpret_cast<uintptr_t>(begin) % kAlignment;
  const auto extent = static_cast<size_t>(end - begin);
  if (extent > sum + sum / 8 + kMaxGap || pinned_from(begin, extent) < extent) return false;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].nbytes() == 0) continue;
    plan.offsets[i] = static_cast<size_t>(tensors[i].data() - begin);
    plan.owners.push_back(tensors[i].owner());
  }
  plan.bytes = extent;
  plan.pieces.push_back({begin, 0, extent});
  return true;
}

// A copy may not go from one pinned piece of a region into the next.
void CopyPlanner::add_pieces(CopyPlan& plan, const std::byte* from, size_t to, size_t bytes) {
  while (bytes > 0) {
    const size_t pinned = pinned_from(from, bytes);
    const size_t part = pinned == 0 ? bytes : std::min(bytes, pinned);
    plan.pieces.push_back({from, to, part});
    from += part;
    to += part;
    bytes -= part;
  }
}

// How many bytes from an address on are pinned in one piece; pins `bytes` from there on first, if
// they lie in a shared region.
size_t CopyPlanner::pinned_from(const std::byte* address, size_t bytes) {
  if (region_ == nullptr || !region_->contains(address)) {
    region_ = region_holding(address);
    pins_ = nullptr;
    if (region_ == nullptr) return 0;
  }
  const size_t offset = region_->offset_of(address);
  pins_ = Pins::of(region_, offset + bytes, driver_, handle_);
  return pins_ == nullptr ? 0 : pins_->from(offset);
}

void CopyPlanner::forget() {
  region_ = nullptr;
  pins_ = nullptr;
}

}  // namespace penstock::device
