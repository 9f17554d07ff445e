#include "penstock/train/slot_writer.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "penstock/base/error.h"
#include "penstock/base/os.h"

namespace penstock::train {
namespace {

uint64_t bit(uint32_t slot) { return uint64_t{1} << slot; }

}  // namespace

bool SlotWriter::publish(std::span<const float> values, uint64_t version) {
  // Looked at after the current version was stored: who holds another one is seen.
  uint64_t held = memory_->held();
  if (const auto current = memory_->newest()) held |= bit(current->slot);
  const int chosen = choose(held);
  if (chosen < 0) return false;
  const auto slot = static_cast<uint32_t>(chosen);
  // Through the caches, for readers look at it next; where it is too large for them, the C library
  // goes past them by itself.
  std::memcpy(memory_->values(slot).data(), values.data(), values.size_bytes());
  sleepers_ = memory_->announce({version, slot});
  most_ = std::max(most_, static_cast<uint32_t>(std::popcount(held)) + 1);
  if (++published_ % kWindow == 0) {
    if (backed() > most_) give_back(held | bit(slot), backed() - most_);
    most_ = 0;
  }
  return true;
}

uint32_t SlotWriter::backed() const { return static_cast<uint32_t>(std::popcount(backed_)); }

int SlotWriter::choose(uint64_t held) {
  // The lowest, so that those further up fall idle.
  if (const uint64_t free = backed_ & ~held; free != 0) return std::countr_zero(free);
  // One that is not backed and yet counted was missed by a reader just now: it goes on at once.
  const auto slot = static_cast<uint32_t>(std::countr_one(backed_));
  if (slot >= kSlots || !back(slot)) return -1;
  return static_cast<int>(slot);
}

bool SlotWriter::back(uint32_t slot) {
  const uint64_t offset = memory_->offset_of(slot);
  const size_t room = memory_->slot_bytes(), bytes = memory_->layout().bytes();
  if (os::memory_headroom() < bytes) return false;
  try {
    if (offset + room > file_end_) os::resize_file(memory_->fd(), offset + room);
  } catch (const Error&) {
    return false;
  }
  file_end_ = std::max(file_end_, offset + room);
  float* const first = memory_->values(slot).data();
  os::prefer_huge_pages(first, bytes, memory_->fd());
  if (os::populate_write(first, bytes, memory_->fd(), offset) != 0) {
    os::discard(memory_->fd(), nullptr, offset, room);
    return false;
  }
  backed_ |= bit(slot);
  return true;
}

// A slot that is not held and not current cannot become held before it is current again.
void SlotWriter::give_back(uint64_t held, uint32_t surplus) {
  for (uint64_t free = backed_ & ~held; free != 0 && surplus > 0; --surplus) {
    const auto slot = static_cast<uint32_t>(std::bit_width(free) - 1);
    os::discard(memory_->fd(), nullptr, memory_->offset_of(slot), memory_->slot_bytes());
    free &= ~bit(slot);
    backed_ &= ~bit(slot);
  }
}

}  // namespace penstock::train
