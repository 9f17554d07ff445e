#include "penstock/pipeline/scratch.h"

#include <algorithm>
#include <atomic>
#include <new>

namespace penstock {

namespace {
constexpr size_t kLineBytes = 64;
constexpr size_t kSmallest = size_t{64} << 10;

size_t rounded(size_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }
}  // namespace

void Scratch::Free::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{kLineBytes});
}

Scratch::Memory Scratch::allocate(size_t bytes) {
  return Memory(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kLineBytes})));
}

std::byte* Scratch::take(size_t bytes) {
  bytes = rounded(std::max<size_t>(bytes, 1));
  while (piece_ < pieces_.size() && pieces_[piece_].bytes - used_ < bytes) {
    ++piece_;
    used_ = 0;
  }
  if (piece_ == pieces_.size()) {
    // Twice what there is: a granule of a steady size soon fits into one piece.
    size_t size = std::max({bytes, kSmallest, this->bytes()});
    pieces_.push_back({allocate(size), size});
    used_ = 0;
  }
  std::byte* memory = pieces_[piece_].memory.get() + used_;
  used_ += bytes;
  return memory;
}

std::shared_ptr<std::byte> Scratch::take_shared(size_t bytes) {
  for (Shared& shared : shared_) {
    bool snug = shared.bytes >= bytes && shared.bytes <= 2 * rounded(std::max<size_t>(bytes, 1));
    if (shared.taken || !snug || shared.memory.use_count() != 1) continue;
    // What the others wrote before they let go of it happened before.
    std::atomic_thread_fence(std::memory_order_acquire);
    shared.taken = true;
    return shared.memory;
  }
  size_t size = rounded(std::max<size_t>(bytes, 1));
  shared_.push_back({std::shared_ptr<std::byte>(allocate(size).release(), Free()), size, true});
  return shared_.back().memory;
}

void Scratch::empty() {
  if (pieces_.size() > 1) {
    // One piece of that size instead of several.
    size_t all = 0;
    for (const Piece& piece : pieces_) all += piece.bytes;
    pieces_.clear();
    pieces_.push_back({allocate(all), all});
  }
  piece_ = used_ = 0;
  // What somebody keeps is his; what went unused since the last time is given back.
  std::erase_if(shared_, [](const Shared& shared) {
    return !shared.taken || shared.memory.use_count() != 1;
  });
  for (Shared& shared : shared_) shared.taken = false;
}

size_t Scratch::bytes() const {
  size_t all = 0;
  for (const Piece& piece : pieces_) all += piece.bytes;
  for (const Shared& shared : shared_) all += shared.bytes;
  return all;
}

}  // namespace penstock
