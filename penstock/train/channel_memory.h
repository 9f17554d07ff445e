#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "penstock/base/os.h"

// The memory that a learner and its producers share. Only channel_memory, ring, channel and
// producer use these words.
//
//   page 0        ChannelHeader
//   kRingsAt      RingWords[kProducers], one for each producer's connection
//   kDataAt       rings of `capacity` bytes each, page-aligned; pages exist once they were used
//
// A ring holds records, each at a multiple of 64 bytes:
//
//   RecordHeader, the bytes of the item's spec, padding to 64
//   the item as a block of one row (pipeline/element/block.h), padding to 64
//
// Both ends map a ring twice in a row, so a record that crosses the ring's end is contiguous.
namespace penstock::train {

inline constexpr uint32_t kProducers = 1024;
inline constexpr uint64_t kRecordUnit = 64;

enum class WhenFull : uint32_t { kBlock, kDropOldest, kDropNewest };

struct ChannelHeader {
  static constexpr uint64_t kMagic = 0x316E6E6863736B70;  // "pkschnn1"

  uint64_t magic;
  uint64_t capacity;  // bytes of one ring
  WhenFull when_full;
  std::atomic<uint32_t> closed;  // nothing is taken after this
  // Incremented when an item arrives and a thread sleeps on it.
  alignas(64) std::atomic<uint32_t> arrivals;
  std::atomic<uint32_t> takers;  // threads of the learner that sleep or are about to
};

// Places in a ring: a record count and a byte offset. See Ring::Place.
struct alignas(256) RingWords {
  std::atomic<uint64_t> tail;               // place of the next item; written by the producer
  std::atomic<uint64_t> refused;            // items rejected (kDropNewest); written by the producer
  std::atomic<uint64_t> put;                // items put, never wraps; written by the producer, and
                                            // one ahead of the tail while it puts
  alignas(64) std::atomic<uint64_t> head;   // place of the oldest item; moved by both ends, by
                                            // compare-and-swap
  alignas(64) std::atomic<uint32_t> space;  // incremented when space is freed and a thread sleeps
  std::atomic<uint32_t> waiting;            // threads of the producer that sleep or are about to
  std::atomic<uint32_t> evicted;            // the learner takes nothing more from this producer
};
static_assert(sizeof(RingWords) == 256);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct RecordHeader {
  uint64_t bytes;       // of the whole record
  uint64_t spec_bytes;  // after this header
};

inline constexpr uint64_t kRingsAt = 4096;
inline constexpr uint64_t kDataAt = kRingsAt + kProducers * sizeof(RingWords);
static_assert(sizeof(ChannelHeader) <= kRingsAt);

// One ring's bytes, mapped twice in a row. Unmaps them at its end. Move-only.
class RingMapping {
 public:
  RingMapping(std::byte* data, uint64_t capacity) : data_(data), capacity_(capacity) {}
  RingMapping(RingMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), capacity_(other.capacity_) {}
  RingMapping& operator=(RingMapping&&) = delete;
  ~RingMapping();

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  uint64_t capacity_;
};

// One mapping of the memory that both ends of a channel share. Threads: any.
class ChannelMemory {
  struct Token {};  // only make() and open() can construct

 public:
  // The learner's end. `capacity` is rounded up to whole pages. Errors: kInvalidArgument
  // (capacity), kOutOfMemory, kSystem (descriptors).
  static std::shared_ptr<ChannelMemory> make(uint64_t capacity, WhenFull when_full);
  // A producer's end, from a received descriptor. Error kInvalidArgument: not channel memory;
  // kOutOfMemory (address space).
  static std::shared_ptr<ChannelMemory> open(os::Fd fd);

  ChannelMemory(Token, os::Fd fd, void* base);
  ~ChannelMemory();
  ChannelMemory(const ChannelMemory&) = delete;
  ChannelMemory& operator=(const ChannelMemory&) = delete;

  int fd() const { return fd_.get(); }
  ChannelHeader& header() const;
  RingWords& words(uint32_t row) const;
  uint64_t capacity() const { return capacity_; }  // copied once: shared memory may change
  WhenFull when_full() const { return when_full_; }
  uint64_t offset_of(uint32_t row) const { return kDataAt + row * capacity_; }

  // Error kOutOfMemory: no address space.
  RingMapping map_ring(uint32_t row) const;
  // The learner's. open_row() makes an empty ring; error kOutOfMemory (a limit on file sizes).
  // clear_row() frees its pages and resets its words.
  void open_row(uint32_t row);
  void clear_row(uint32_t row);

  void wake_takers() const;  // if any sleeps
  void wake_producer(uint32_t row) const;
  void wake_all_takers() const;

 private:
  const os::Fd fd_;
  std::byte* const base_;
  const uint64_t capacity_;
  const WhenFull when_full_;
  uint32_t rows_ = 0;  // that the file is long enough for
};

}  // namespace penstock::train
