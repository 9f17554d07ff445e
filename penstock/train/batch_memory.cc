#include "penstock/train/batch_memory.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <new>

namespace penstock::train {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr uint64_t kLarge = uint64_t{128} << 10;  // from here on malloc gives pages back at once

std::shared_ptr<std::byte> allocate(uint64_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new(bytes, kAlignment));
  return {memory, [](std::byte* all) { ::operator delete(all, kAlignment); }};
}

}  // namespace

std::shared_ptr<std::byte> BatchMemory::take(uint64_t bytes) {
  if (bytes < kLarge) return allocate(std::max<uint64_t>(bytes, 1));
  for (Piece& piece : pieces_) {
    // Batches differ in how many items there were to take.
    const bool fits = piece.bytes >= bytes && piece.bytes / 8 <= bytes;
    if (!fits || piece.memory.use_count() != 1) continue;
    // What others did before they let go of it happened before.
    std::atomic_thread_fence(std::memory_order_acquire);
    return piece.memory;
  }
  const uint64_t size = std::bit_ceil(bytes);  // pages that are not touched cost nothing
  Piece fresh{allocate(size), size};
  if (pieces_.size() == kMost) pieces_.erase(pieces_.begin());
  pieces_.push_back(fresh);
  return fresh.memory;
}

}  // namespace penstock::train
