#include "penstock/train/channel_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/train/ring.h"

namespace penstock::train {
namespace {

Error no_memory(const char* operation, const std::string& why) {
  return Error(Code::kOutOfMemory, operation, "no memory for a channel: " + why);
}

constexpr const char* kNoAddressesLeft = "a limit (ulimit -v) leaves no address space for it";

}  // namespace

RingMapping::~RingMapping() { os::unmap(data_, 2 * capacity_); }

std::shared_ptr<ChannelMemory> ChannelMemory::make(uint64_t capacity, WhenFull when_full) {
  constexpr const char* kWhat = "channel";
  if (capacity == 0 || capacity > Ring::kMaxBytes) {
    throw Error(Code::kInvalidArgument, kWhat,
                "capacity is " + std::to_string(capacity) +
                    " bytes: give 1 to 2^33, enough for the items that a producer has queued");
  }
  const uint64_t page = os::page_size();
  capacity = (capacity + page - 1) / page * page;
  os::Fd fd = os::memory_file("penstock-channel", kDataAt);
  void* base = os::reserve_mapping(fd.get(), kDataAt, true);
  if (base == nullptr) throw no_memory(kWhat, kNoAddressesLeft);
  if (int error = os::populate_write(base, kDataAt, fd.get(), 0); error != 0) {
    os::unmap(base, kDataAt);
    throw no_memory(kWhat, std::strerror(error));
  }
  auto* header = new (base) ChannelHeader{};  // the rings' words are zero
  header->capacity = capacity;
  header->when_full = when_full;
  header->magic = ChannelHeader::kMagic;
  return std::make_shared<ChannelMemory>(Token{}, std::move(fd), base);
}

std::shared_ptr<ChannelMemory> ChannelMemory::open(os::Fd fd) {
  constexpr const char* kWhat = "attach_channel";
  auto refuse = [](const char* why) {
    return Error(Code::kInvalidArgument, kWhat,
                 "the descriptor from the learner is no channel memory: " + std::string(why));
  };
  try {
    os::forbid_shrinking(fd.get());
  } catch (const Error&) {
    throw refuse("the file can shrink");
  }
  // Sealed before its size is read: afterwards it cannot shrink.
  struct stat file {};
  if (fstat(fd.get(), &file) != 0) throw Error::from_errno(errno, kWhat, "fstat");
  if (!S_ISREG(file.st_mode)) throw refuse("it is no memory file");
  if (static_cast<uint64_t>(file.st_size) < kDataAt) throw refuse("it is too short");
  void* base = os::reserve_mapping(fd.get(), kDataAt, true);
  if (base == nullptr) throw no_memory(kWhat, kNoAddressesLeft);
  auto memory = std::make_shared<ChannelMemory>(Token{}, std::move(fd), base);
  if (memory->header().magic != ChannelHeader::kMagic) throw refuse("wrong magic number");
  if (memory->capacity_ == 0 || memory->capacity_ > Ring::kMaxBytes ||
      memory->capacity_ % os::page_size() != 0 || memory->when_full_ > WhenFull::kDropNewest) {
    throw refuse("its header has invalid values");
  }
  memory->rows_ = static_cast<uint32_t>(std::min(
      (static_cast<uint64_t>(file.st_size) - kDataAt) / memory->capacity_, uint64_t{kProducers}));
  return memory;
}

ChannelMemory::ChannelMemory(Token, os::Fd fd, void* base)
    : fd_(std::move(fd)),
      base_(static_cast<std::byte*>(base)),
      capacity_(header().capacity),
      when_full_(header().when_full) {}

ChannelMemory::~ChannelMemory() { os::unmap(base_, kDataAt); }

ChannelHeader& ChannelMemory::header() const {
  return *std::launder(reinterpret_cast<ChannelHeader*>(base_));
}

RingWords& ChannelMemory::words(uint32_t row) const {
  return reinterpret_cast<RingWords*>(base_ + kRingsAt)[row];
}

RingMapping ChannelMemory::map_ring(uint32_t row) const {
  constexpr const char* kWhat = "channel";
  if (row >= rows_) {
    throw Error(Code::kInvalidArgument, kWhat, "the memory has no ring " + std::to_string(row));
  }
  void* both = os::reserve_mapping(-1, 2 * capacity_, false);
  if (both == nullptr) throw no_memory(kWhat, kNoAddressesLeft);
  RingMapping mapping(static_cast<std::byte*>(both), capacity_);
  for (uint64_t at : {uint64_t{0}, capacity_}) {
    void* mapped = mmap(mapping.data() + at, capacity_, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, fd_.get(), static_cast<off_t>(offset_of(row)));
    if (mapped == MAP_FAILED) throw no_memory(kWhat, std::strerror(errno));
  }
  return mapping;
}

void ChannelMemory::open_row(uint32_t row) {
  if (row >= rows_) {
    os::resize_file(fd_.get(), offset_of(row + 1));
    rows_ = row + 1;
  }
}

void ChannelMemory::clear_row(uint32_t row) {
  os::discard(fd_.get(), nullptr, offset_of(row), capacity_);
  RingWords& all = words(row);
  all.tail.store(0);
  all.refused.store(0);
  all.put.store(0);
  all.head.store(0);
  all.waiting.store(0);
  all.evicted.store(0);
}

void ChannelMemory::wake_takers() const {
  if (header().takers.load() != 0) wake_all_takers();
}

void ChannelMemory::wake_all_takers() const {
  header().arrivals.fetch_add(1);
  os::futex_wake(header().arrivals, INT_MAX, true);
}

void ChannelMemory::wake_producer(uint32_t row) const {
  words(row).space.fetch_add(1);
  os::futex_wake(words(row).space, INT_MAX, true);
}

}  // namespace penstock::train
