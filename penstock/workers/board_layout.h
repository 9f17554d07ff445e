#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "penstock/memory/ledger.h"
#include "penstock/observe/counters.h"
#include "penstock/observe/trace.h"
#include "penstock/workers/ticket.h"

// What lies on a Board, see there: memory that processes share.
namespace penstock {

enum class UnitState : uint32_t { kIdle, kOpen, kClaimed, kWriting, kDone };

// What a done unit holds. Whatever it carries is an object of the consumer's process (Unit::object,
// workers in line and in threads) or an encoded packet, inline or in a block of the worker's arena.
enum class ResultKind : uint32_t {
  kNone,
  kPacket,    // a whole item
  kReplaced,  // (item, losses): what did not go as planned travels with it
  kRows,      // rows were written into the post's slot; a packet may follow with what is no array
  kError,     // user code raised; the packet says what
  kSkipped,   // the item was lost under on_error="skip"; the packet says why
  kEnd,       // the stream has no more
  kTimeout,   // took too long; `row` says which row
  kLost,      // lost its worker too often
  kNoRoom,    // no memory for the batch
  kApart,     // a granule that does not go with the others: one worker is to make the batch
  kBroken,    // an Error of penstock's own ended the ticket; the packet has it (error_in)
};

struct BlockRef {  // a block in a worker's arena
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t generation = 0;
  uint32_t arena = 0;
};

inline constexpr uint64_t kClockStopped = UINT64_MAX;  // Unit::claimed_ns: it cannot time out now
inline constexpr size_t kUnitBytes = 512;
inline constexpr size_t kLayoutBytes = 16 * 1024;

// What a worker has in hand of its granule: a row, and of what several functions do for it, which
// call. One word, so that whoever reads it of a dead worker never has half of each.
struct Call {
  uint32_t row = 0;
  uint32_t what = 0;  // 0: the row is made by one function, or none was called yet

  uint64_t word() const { return uint64_t{row} << 32 | what; }
  static Call of(uint64_t word) {
    return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word)};
  }
  bool operator==(const Call&) const = default;
};

// Call::what of what is made of all rows up to Call::row (collate): whose fault it is nobody knows,
// so that it is raised under every policy.
inline constexpr uint32_t kCollating = UINT32_MAX - 1;

struct alignas(64) Unit {
  std::atomic<uint64_t> word;  // seq << 24 | worker << 16 | attempt << 8 | losses << 4 | state
  std::atomic<uint64_t> claimed_ns;  // for the timeout: when it was first seen claimed; 0: not yet
  std::atomic<uint64_t> in_hand;     // Call::word of the call that a failed ticket ended with
  std::atomic<uint32_t> poisoned;    // calls that are; see Board::poison
  ResultKind kind;
  uint32_t worker;  // who made it
  uint32_t length;  // of the packet
  uint64_t bytes;   // payload, for the bytes budget
  uint64_t object;  // 0: none
  BlockRef block;   // where the packet is, when it is not inline (length > inline)
  std::byte packet[kUnitBytes - 80];

  // The parts of a word.
  static UnitState state_of(uint64_t word) { return static_cast<UnitState>(word & 15); }
  static uint32_t losses_of(uint64_t word) { return word >> 4 & 15; }
  static uint32_t attempt_of(uint64_t word) { return word >> 8 & 0xff; }  // 0: never opened again
  static uint32_t worker_of(uint64_t word) { return word >> 16 & 0xff; }
  static uint64_t seq_of(uint64_t word) { return word >> 24; }
  static uint64_t word_of(uint64_t seq, uint32_t worker, uint32_t attempt, uint32_t losses,
                          UnitState state) {
    return seq << 24 | static_cast<uint64_t>(worker) << 16 | attempt << 8 | losses << 4 |
           static_cast<uint64_t>(state);
  }
  static uint64_t with_state(uint64_t word, UnitState state) {
    return (word & ~uint64_t{15}) | static_cast<uint64_t>(state);
  }
};
static_assert(sizeof(Unit) == kUnitBytes);

// A call that is not to be tried again.
struct Poisoned {
  std::atomic<uint64_t> call;    // Call::word
  std::atomic<uint64_t> ending;  // worker << 8 | ResultKind: who had it in hand, and how that ended
};

// Whether a batch's memory is there (Post::layout_state), and who moves it:
//
//   none ──> proposing ──> proposed ──> proposing ──> ready | no room ──> closed
//      worker        worker       server         server              consumer, from any state
//
// The worker is the one that finished a first sample; the server whichever thread of the feed's
// process finds room. The consumer closes it before the place is reused, after waiting for a
// server.
enum class LayoutState : uint32_t { kNone, kProposing, kProposed, kReady, kNoRoom, kClosed };

struct alignas(64) Post {
  uint64_t seq;
  uint64_t epoch, base, step, version;
  uint32_t rows;
  // Its first units are in use. Atomic because whoever looks may come too late: units say whose
  // they are.
  std::atomic<uint32_t> granules;
  // kAnyWorker, or the only worker that may claim it. Atomic because it is looked at before a
  // claim.
  std::atomic<uint32_t> owner;
  uint32_t stream;
  // Where a row lies in the batch is known only when all rows are made: one worker collects them.
  bool rows_together;
  // Explicit indices (a sampler's), in the feed's arena; count 0: the order of the plan.
  uint64_t indices_offset;
  // The batch's memory, in the feed's arena.
  alignas(64) std::atomic<uint32_t> layout_state;  // see Board::layout_word
  uint32_t layout_length;
  uint32_t layout_row;  // of the batch: whose sample the layout is of
  uint64_t slot_offset, slot_bytes, needed_bytes;
  std::atomic<uint32_t>
      tainted;  // an abandoned thread may still write here: never reuse the memory
  alignas(64) std::byte layout[kLayoutBytes];

  static constexpr uint32_t kServer = kMaxWorkers;  // as a proposer
  static LayoutState layout_state_of(uint32_t word) {
    return static_cast<LayoutState>(word & 0xff);
  }
};

// A worker's own place on the board.
struct alignas(64) WorkerPlace {
  std::atomic<uint32_t> event;               // what it sleeps on
  std::atomic<uint32_t> tickets;             // claimed since it started (0: died before its first)
  std::atomic<uint64_t> ticket_ns;           // running mean of a ticket's time
  std::atomic<uint64_t> in_hand;             // Call::word, of the ticket that it claimed last
  std::atomic<uint32_t> inside;              // Slot::Look and Slot::Write that it is in, see there
  std::atomic<uint32_t> serving;             // somebody is in serve() for it, and was not abandoned
  std::atomic<uint64_t> waiting_since;       // for a ticket, in ns; see Board::figures
  std::atomic<uint64_t> reopens[kMaxLanes];  // of each lane's, as many as it has looked for
  std::atomic<int64_t> pid;
  LedgerEntry memory;  // of its arena
  WorkerCounters counters;
  StageCounters stages;  // by their places in the plan that it runs
  TraceRing trace;

  static constexpr uint64_t kCounting = 1;  // as waiting_since: it goes into the counters just now
};

}  // namespace penstock
