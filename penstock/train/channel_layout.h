#pragma once

#include <atomic>
#include <cstdint>

// The words in the memory that a learner and the producers of a channel share. Only channel_memory,
// ring, channel and producer see them.
//
//   page 0        ChannelHeader
//   kRingsAt      RingWords[kProducers], one to a producer's connection
//   kDataAt       rings of `capacity` bytes each, page-aligned; pages exist once they were used
//
// A ring holds records, one after the other, each at a multiple of 64 bytes:
//
//   RecordHeader, the bytes of the item's spec, padding to 64
//   the item as a block of one row (pipeline/element/block.h), padding to 64
//
// Both ends map a ring twice in a row, so that a record that goes past its end lies in one piece.
namespace penstock::train {

inline constexpr uint32_t kProducers = 1024;
inline constexpr uint64_t kRecordUnit = 64;

enum class WhenFull : uint32_t { kBlock, kDropOldest, kDropNewest };

struct ChannelHeader {
  static constexpr uint64_t kMagic = 0x316E6E6863736B70;  // "pkschnn1"

  uint64_t magic;
  uint64_t capacity;  // bytes of one ring
  WhenFull when_full;
  std::atomic<uint32_t> closed;  // nothing will be taken any more
  // Goes on when there is something to take, and somebody sleeps on it.
  alignas(64) std::atomic<uint32_t> arrivals;
  std::atomic<uint32_t> takers;  // threads of the learner that sleep, or are about to
};

// A place in a ring: how many items came before it, and where it is. See Ring::Place.
struct alignas(256) RingWords {
  std::atomic<uint64_t> tail;     // where the next item goes. The producer's
  std::atomic<uint64_t> refused;  // items that were not let in (kDropNewest). The producer's
  alignas(64) std::atomic<uint64_t> head;  // the oldest item. Both's, by compare-and-swap
  alignas(64) std::atomic<uint32_t> room;  // goes on when there is room, and somebody sleeps on it
  std::atomic<uint32_t> waiting;           // threads of the producer that sleep, or are about to
  std::atomic<uint32_t> banished;          // nothing of this producer is taken any more
};
static_assert(sizeof(RingWords) == 256);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

struct RecordHeader {
  uint64_t bytes;       // of the whole record
  uint64_t spec_bytes;  // behind this
};

inline constexpr uint64_t kRingsAt = 4096;
inline constexpr uint64_t kDataAt = kRingsAt + kProducers * sizeof(RingWords);
static_assert(sizeof(ChannelHeader) <= kRingsAt);

}  // namespace penstock::train
