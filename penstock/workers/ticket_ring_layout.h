#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "penstock/memory/ledger.h"
#include "penstock/observe/counters.h"
#include "penstock/observe/trace.h"

namespace penstock {

// The address of a piece of work. What it yields is a pure function of (plan, seed, ticket), so it
// does not matter which worker does it, when, or how often.
struct Ticket {
  uint64_t epoch = 0;
  uint64_t base = 0;  // global batch at which this epoch was entered (0, or where it was restored)
  uint64_t step = 0;  // this rank's batch within the epoch, counted from `base`
  uint64_t version = 0;  // of the plan: changes when an epoch hook changed the dataset
  uint32_t rows = 1;     // samples in the whole batch; 1 where an item is a whole batch
  uint32_t begin = 0;    // the granule: rows [begin, end) of the batch are this ticket's
  uint32_t end = 1;
  uint32_t stream = 0;         // number of the stream, in plans with streams
  uint32_t lane = 0;           // of the ring; lane n + 1 is parallel map n of a Dataset
  bool rows_together = false;  // see BatchEntry::rows_together
  uint64_t input_offset = 0;   // see BatchEntry::input_offset
};

inline constexpr uint32_t kAnyWorker = 0xffffffff;
inline constexpr uint32_t kMaxWorkers = 256;
inline constexpr uint32_t kMaxLanes = 9;         // of a ring
inline constexpr uint32_t kMaxGranuleRows = 64;  // so that a 64-bit mask names them

// The contents of a TicketRing, in memory that processes share.

enum class TaskState : uint32_t { kIdle, kOpen, kClaimed, kWriting, kDone };

// The result of a done task. Its value is an object of the consumer's process (Task::object, for
// workers in line and in threads) or an encoded packet, inline or in a block of the worker's arena.
enum class ResultKind : uint32_t {
  kNone,
  kPacket,    // a whole item
  kReplaced,  // (item, losses): an item, with the samples that were lost or replaced
  kRows,      // rows are in the entry's block; a packet may follow with values that are not arrays
  kError,     // user code raised; the packet describes the exception
  kSkipped,   // the item was lost under on_error="skip"; the packet says why
  kEnd,       // the stream has no more
  kTimeout,   // took too long; Task::bytes is the row
  kLost,      // lost its worker too often
  kNoSpace,   // no memory for the batch
  kMismatch,  // a granule that does not match the others: one worker has to make the whole batch
  kBroken,    // an Error of penstock's own ended the ticket; the packet has it (error_in)
};

struct BlockRef {  // a block in a worker's arena
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t generation = 0;
  uint32_t arena = 0;
};

inline constexpr uint64_t kClockStopped = UINT64_MAX;  // Task::claimed_ns: no timeout at present
inline constexpr size_t kTaskBytes = 512;
inline constexpr size_t kLayoutBytes = 16 * 1024;

// The call that a worker is in: a row of its granule and, where several functions make a row, which
// of them. One word, so that the supervisor of a dead worker never reads half of each.
struct Call {
  uint32_t row = 0;
  uint32_t what = 0;  // 0: one function makes the row, or none was called yet

  uint64_t word() const { return uint64_t{row} << 32 | what; }
  static Call of(uint64_t word) {
    return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)};
  }
  bool operator==(const Call&) const = default;
};

// Call::what of a call that takes all rows up to Call::row (collate). The failing sample cannot be
// identified, so every policy raises the error.
inline constexpr uint32_t kCollating = UINT32_MAX - 1;
// Call::what where it is not known which call ended a worker: its host is gone. Every policy raises
// the error, here too.
inline constexpr uint32_t kUnknownCall = UINT32_MAX - 2;

struct alignas(64) Task {
  std::atomic<uint64_t> word;  // seq << 24 | worker << 16 | attempt << 8 | losses << 4 | state
  std::atomic<uint64_t> claimed_ns;  // when the timeout's clock started; 0: not yet
  std::atomic<uint64_t> in_hand;     // Call::word of the call that a failed ticket ended with
  std::atomic<uint32_t> poisoned;    // number of poisoned calls; see RingSupervisor::poison
  ResultKind kind;
  uint32_t worker;  // that made the result
  uint32_t length;  // of the packet
  uint64_t bytes;   // payload, for the bytes budget
  uint64_t object;  // 0: none
  BlockRef block;   // where the packet is, when it is not inline (length > inline)
  std::byte packet[kTaskBytes - 80];

  // The parts of a word.
  static TaskState state_of(uint64_t word) { return static_cast<TaskState>(word & 15); }
  static uint32_t losses_of(uint64_t word) { return word >> 4 & 15; }
  static uint32_t attempt_of(uint64_t word) { return word >> 8 & 0xff; }  // 0: never opened again
  static uint32_t worker_of(uint64_t word) { return word >> 16 & 0xff; }
  static uint64_t seq_of(uint64_t word) { return word >> 24; }
  static uint64_t word_of(uint64_t seq, uint32_t worker, uint32_t attempt, uint32_t losses,
                          TaskState state) {
    return seq << 24 | static_cast<uint64_t>(worker) << 16 | attempt << 8 | losses << 4 |
           static_cast<uint64_t>(state);
  }
  static uint64_t with_state(uint64_t word, TaskState state) {
    return (word & ~uint64_t{15}) | static_cast<uint64_t>(state);
  }
};
static_assert(sizeof(Task) == kTaskBytes);

// A call that must not be tried again.
struct Poisoned {
  std::atomic<uint64_t> call;    // Call::word
  std::atomic<uint64_t> ending;  // worker << 8 | ResultKind
};

// The state of a batch's memory (BatchEntry::layout_state):
//
//   none ─> proposing ─> proposed ─> proposing ─> ready | no space ─> closed
//
//   - none -> proposing -> proposed:          the worker that finished the batch's first sample
//   - proposed -> proposing -> ready|no space: a server, any thread of the consumer's process that
//                                             allocates the memory
//   - any state -> closed:                    the consumer, before the entry is reused, and after a
//                                             server is done
enum class LayoutState : uint32_t { kNone, kProposing, kProposed, kReady, kNoSpace, kClosed };

// What the consumer alone writes into an entry. The consumer's process keeps a copy of its own,
// because a worker that crashes may write anything into the ring.
struct PostedEntry {
  uint64_t epoch = 0, base = 0, step = 0, version = 0;
  uint64_t input_offset = 0;
  uint32_t rows = 0, owner = kAnyWorker, stream = 0;
  uint8_t rows_together = 0;
  std::atomic<uint32_t> granules{0};
  std::atomic<uint32_t> serving{0};  // servers that may be allocating its memory
};

struct alignas(64) BatchEntry {
  uint64_t seq;
  uint64_t epoch, base, step, version;
  uint32_t rows;
  // The number of tasks in use. Atomic because a late worker may read it for the previous entry;
  // the tasks' words say whose they are.
  std::atomic<uint32_t> granules;
  // kAnyWorker, or the only worker that may claim the entry. Atomic because workers read it before
  // they claim.
  std::atomic<uint32_t> owner;
  uint32_t stream;
  // A row's place in the batch is known only when all rows are made, so one worker makes them all.
  uint8_t rows_together;  // not bool: another process may write any byte
  // A sampler's indices, or a StreamChunk, in the consumer's arena. 0: the plan says which elements
  // these are.
  uint64_t input_offset;
  // The batch's memory, in the consumer's arena.
  alignas(64) std::atomic<uint32_t> layout_state;  // see TicketRing::layout_word
  uint32_t layout_length;
  uint32_t layout_row;  // the row of the batch whose sample has this layout
  uint64_t block_offset, block_bytes, needed_bytes;
  std::atomic<uint32_t>
      tainted;  // an abandoned thread may still write here: never reuse the memory
  alignas(64) std::byte layout[kLayoutBytes];

  // Rows of a granule; the last one may have fewer. At least 1.
  uint32_t granule_rows() const {
    const uint64_t count = std::max(granules.load(std::memory_order_relaxed), 1u);
    return static_cast<uint32_t>(std::max<uint64_t>((rows + count - 1) / count, 1));
  }

  static constexpr uint32_t kServer = kMaxWorkers;  // the proposer while a server allocates
  static LayoutState layout_state_of(uint32_t word) {
    return static_cast<LayoutState>(word & 0xff);
  }
};

// A worker's own place on the ring.
struct alignas(64) WorkerPlace {
  std::atomic<uint32_t> event;               // the futex that the worker sleeps on
  std::atomic<uint32_t> tickets;             // claimed since its start; 0: died before its first
  std::atomic<uint64_t> ticket_ns;           // running mean of a ticket's time
  std::atomic<uint64_t> in_hand;             // Call::word of the ticket claimed last
  std::atomic<uint32_t> inside;              // counts open Slot::Look and Slot::Write
  std::atomic<uint32_t> serving;             // a thread is in serve() and was not abandoned
  std::atomic<uint64_t> waiting_since;       // for a ticket, in ns; see TicketRing::figures
  std::atomic<uint64_t> reopens[kMaxLanes];  // LaneHeader::reopens, when it looked last
  std::atomic<int64_t> pid;
  LedgerEntry memory;  // of the worker's arena
  WorkerCounters counters;
  StageCounters stages;  // by the stages' places in the plan
  TraceRing trace;

  static constexpr uint64_t kCounting = 1;  // waiting_since while the wait is being counted
};

// The beginning of a ring: what all lanes share. The workers' places follow, then the lanes.
struct RingHeader {
  uint64_t magic;
  uint32_t entries, granules, workers, max_poisoned;
  uint32_t lanes;
  uint32_t inner[kMaxLanes - 1];                                 // entries of the further lanes
  std::atomic<uint64_t> most_live;                               // see Ledger
  alignas(64) std::atomic<uint64_t> sleeping[kMaxWorkers / 64];  // a bit per worker
  std::atomic<uint32_t> closed;
  std::atomic<uint32_t> active;  // workers from this one on are parked
};

// The beginning of a lane; its tasks, poisoned calls and entries follow.
struct LaneHeader {
  alignas(64) std::atomic<uint64_t> head;   // lowest entry not yet cleared
  std::atomic<uint64_t> posted;             // one past the newest entry
  alignas(64) std::atomic<uint64_t> hint;   // the task to look at first
  std::atomic<uint64_t> reopens;            // counts reopened tasks, which may lie before the hint
  alignas(64) std::atomic<uint64_t> wants;  // seq + 1 that the consumer waits for; 0: it is awake
  std::atomic<uint32_t> consumer_event;     // the futex that the consumer sleeps on
  alignas(64) ConsumerCounters consumer;
  TraceRing consumer_trace;
};

}  // namespace penstock
