#include "penstock/pipeline/element/scratch.h"

#include <algorithm>
#include <new>

#include "penstock/base/os.h"

namespace penstock {

namespace {
constexpr size_t kLineBytes = 64;
constexpr size_t kSmallest = size_t{64} << 10;
// Pieces of this size and above are mapped from the system, and unmapped when freed. Freed heap
// memory could stay in the process although it is no longer counted.
constexpr size_t kMapped = size_t{256} << 10;
constexpr size_t kLargestStep = size_t{8} << 20;
constexpr uint32_t kTimes = 32;  // calls of empty() between checks for unused memory

size_t rounded(size_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes * kLineBytes; }
}  // namespace

void Scratch::Free::operator()(std::byte* memory) const {
  if (bytes >= kMapped) {
    os::unmap(memory, bytes);
  } else {
    ::operator delete (memory, std::align_val_t{kLineBytes});
  }
}

Scratch::Memory Scratch::allocate(size_t bytes) {
  void* memory = nullptr;
  if (bytes >= kMapped) {
    memory = os::reserve_mapping(-1, bytes, false);
    if (memory == nullptr) throw std::bad_alloc();
  } else {
    memory = ::operator new (bytes, std::align_val_t{kLineBytes});
  }
  return {static_cast<std::byte*>(memory), Free{bytes}};
}

std::byte* Scratch::take(size_t bytes) {
  bytes = rounded(std::max<size_t>(bytes, 1));
  while (piece_ < pieces_.size() && pieces_[piece_].bytes - used_ < bytes) {
    ++piece_;
    used_ = 0;
  }
  if (piece_ == pieces_.size()) {
    // At least as much as there is already, so that granules of a steady size soon fit into one
    // piece.
    size_t size = std::max({bytes, kSmallest, std::min(this->bytes(), kLargestStep)});
    pieces_.push_back({allocate(size), size});
    used_ = 0;
    part_.is(this->bytes());
  }
  std::byte* memory = pieces_[piece_].memory.get() + used_;
  used_ += bytes;
  taken_ += bytes;
  return memory;
}

void Scratch::empty() noexcept {
  for (Kept* kept : kept_) kept->release();
  most_used_ = std::max(most_used_, taken_);
  const size_t all = bytes();
  size_t wanted = all;
  if (++emptied_ == kTimes) {
    if (all / 2 > std::max(most_used_, kSmallest)) wanted = most_used_;
    most_used_ = emptied_ = 0;
  }
  piece_ = used_ = taken_ = 0;
  if (pieces_.size() > 1 || wanted != all) {
    // Replaces several pieces by one.
    pieces_.clear();
    try {
      if (wanted != 0) pieces_.push_back({allocate(wanted), wanted});
    } catch (const std::bad_alloc&) {  // take() will throw if memory is still short
    }
  }
  part_.is(bytes());
}

void Scratch::free_all() noexcept {
  pieces_.clear();
  piece_ = used_ = 0;
  empty();
}

size_t Scratch::bytes() const {
  size_t all = 0;
  for (const Piece& piece : pieces_) all += piece.bytes;
  return all;
}

}  // namespace penstock
