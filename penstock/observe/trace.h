#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace penstock {

// What a worker or the consumer was doing for a while.
enum class TraceKind : uint32_t {
  kNone,          // an event that was never finished; readers leave it out
  kUser,          // worker: making a batch and handing it over
  kWaitTicket,    // worker: nothing to do
  kWaitSlot,      // worker: waiting for memory
  kConsumerWait,  // consumer: waiting for a batch
  kConsumerBusy,  // consumer: the training step
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
  uint64_t span_ns = 0;    // from the begin of the first piece to the end of the last
  uint64_t active_ns = 0;  // the pieces themselves; less than span_ns where several were merged
  uint64_t step = 0;       // of the first piece; the low 40 bits
  uint32_t epoch = 0;      // the low 24 bits
  uint32_t granule = 0;    // which part of the step
  uint32_t count = 1;      // pieces
  TraceKind kind = TraceKind::kNone;
};

// A ring of the latest events, in shared memory: one writer, any number of readers in any process,
// nobody waits. All zero bytes are an empty ring. 256 KiB, of which only written pages exist.
struct TraceRing {
  static constexpr size_t kCapacity = 8192;  // a power of two

  // 32 bytes. Every word is released by the writer and acquired by readers, so that a reader that
  // saw a word of a new event also sees `begun` count it, and knows that it was lapped there.
  struct Event {
    std::atomic<uint64_t> begin_ns;
    std::atomic<uint64_t> time;    // span | active share | kind
    std::atomic<uint64_t> place;   // step | epoch
    std::atomic<uint64_t> pieces;  // count | granule
  };

  alignas(
      64) std::atomic<uint64_t> begun;  // events whose writing has begun since the ring was made
  std::atomic<uint64_t> done;           // and has ended
  alignas(64) Event events[kCapacity];
};
static_assert(sizeof(TraceRing::Event) == 32);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The one writer of a ring; lives in its worker's own memory. One thread. The ring must outlive it.
//
// Small pieces are merged: a piece that is short and follows closely on the last event of its own
// kind extends that event, so 1 us items leave a few events and not thousands. "Short" and
// "closely" start at 20 us and double each time that the ring was filled (up to 5 ms): a short run
// is seen in full detail, and of a long run the ring holds a longer stretch.
class TraceWriter {
 public:
  TraceWriter() = default;  // records nothing
  // Goes on where the last writer of this ring (which may have been killed) left off.
  explicit TraceWriter(TraceRing* ring);

  // Records [begin_ns, end_ns). The caller reads the clock.
  void record(TraceKind kind, uint64_t begin_ns, uint64_t end_ns, uint64_t epoch = 0,
              uint64_t step = 0, uint32_t granule = 0);

 private:
  // The last event of a kind, as it stands in the ring.
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

// The events in the ring, oldest first (by the time that they began); what is overwritten while
// being read is left out. Any thread, any process, while the writer goes on.
std::vector<TraceEvent> events_of(const TraceRing& ring);

}  // namespace penstock
