#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock {

// What a worker or the consumer was doing.
enum class TraceKind : uint32_t {
  kNone,          // an unfinished event; readers leave it out
  kUser,          // worker: making a batch and handing it over
  kWaitTicket,    // worker: nothing to do
  kWaitSlot,      // worker: waiting for memory
  kConsumerWait,  // consumer: waiting for a batch
  kConsumerBusy,  // consumer: the training step
  kDeviceCopy,    // device: a batch's copy, over the link
  kDeviceWait,    // device: the consumer's stream waits for a copy
  kDeviceStep,    // device: the consumer's work on a batch
  kRestart,       // a worker was replaced
  kError,         // user code raised, or a ticket timed out
  kCount,
};
inline constexpr size_t kTraceKinds = static_cast<size_t>(TraceKind::kCount);

std::string_view name_of(TraceKind kind);

// One event, read back. Times are nanoseconds of the monotonic clock, which all processes of a
// machine share.
struct TraceEvent {
  uint64_t begin_ns = 0;
  uint64_t span_ns = 0;    // from the begin of the first merged piece to the end of the last
  uint64_t active_ns = 0;  // of the pieces alone; less than span_ns if several were merged
  uint64_t step = 0;       // of the first piece; the low 40 bits
  uint32_t epoch = 0;      // the low 24 bits
  uint32_t granule = 0;    // which part of the step
  uint32_t count = 1;      // pieces
  TraceKind kind = TraceKind::kNone;
};

// A ring of the latest events, in shared memory. One writer, any number of readers in any process;
// none of them waits. All zero bytes are an empty ring. 256 KiB, of which only written pages exist.
struct TraceRing {
  static constexpr size_t kCapacity = 8192;  // a power of two

  // 32 bytes. The writer releases every word and readers acquire it. So a reader that saw a word of
  // a newer event also sees `begun` count that event, and knows that the writer has lapped it.
  struct Event {
    std::atomic<uint64_t> begin_ns;
    std::atomic<uint64_t> time;    // span | active share | kind
    std::atomic<uint64_t> place;   // step | epoch
    std::atomic<uint64_t> pieces;  // count | granule
  };

  // Events begun, and completed, since the ring was made.
  alignas(64) std::atomic<uint64_t> begun;
  std::atomic<uint64_t> done;
  alignas(64) Event events[kCapacity];
};
static_assert(sizeof(TraceRing::Event) == 32);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The writer of a ring; lives in its worker's own memory. One thread. The ring must outlive it.
//
// Short events are merged: one that follows closely after the last event of its kind extends that
// event. So items of 1 us leave a few events instead of thousands. The limits for "short" and
// "closely" start at 20 us and double each time the ring is filled, up to 5 ms: a short run is
// recorded in full detail, and for a long run the ring covers more time.
class TraceWriter {
 public:
  TraceWriter() = default;  // records nothing
  // Continues where the last writer of this ring, which may have been killed, stopped.
  explicit TraceWriter(TraceRing* ring);

  // Records [begin_ns, end_ns). The caller reads the clock.
  void record(TraceKind kind, uint64_t begin_ns, uint64_t end_ns, uint64_t epoch = 0,
              uint64_t step = 0, uint32_t granule = 0);

 private:
  // The last event of a kind, as written in the ring.
  struct Last {
    uint64_t index_plus_1 = 0;  // 0: none
    uint64_t begin_ns = 0;
    uint64_t end_ns = 0;
    uint64_t active_ns = 0;
    uint32_t count = 0;
    uint32_t granule = 0;
    bool small = false;  // made of short pieces, so it may grow
  };
  void append(TraceKind kind, uint64_t begin_ns, uint64_t end_ns, uint64_t epoch, uint64_t step,
              uint32_t granule);

  TraceRing* ring_ = nullptr;
  uint64_t next_ = 0;
  uint64_t small_ns_ = 20'000;
  Last last_[kTraceKinds];
};

// The events in the ring, oldest first by their begin. Events overwritten during the call are left
// out. Any thread, any process, while the writer continues.
std::vector<TraceEvent> events_of(const TraceRing& ring);

}  // namespace penstock
