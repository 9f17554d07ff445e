#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/workers/board.h"
#include "penstock/workers/ticket.h"

namespace penstock {

class Allocator;

// How a worker reaches the memory that batches are filled in.
class RowMemory {
 public:
  virtual ~RowMemory() = default;
  // Where an offset of the feed's arena lies in this process.
  virtual std::byte* at(uint64_t offset) = 0;
  // Some post's layout was proposed and needs room: gives it, or asks the process that can.
  virtual void request(Board& board) = 0;
};

// For every proposed post of a lane: finds room in the feed's arena, or, for the lowest undelivered
// one (in further lanes: for any), says that there is none. Returns false while a post still waits.
// In the feed's process; any thread.
bool serve_room(Board& board, Allocator& arena);

// The feed's memory as the feed's own process sees it. The arena outlives it.
class LocalRows : public RowMemory {
 public:
  explicit LocalRows(Allocator& arena) : arena_(arena) {}
  std::byte* at(uint64_t offset) override;
  void request(Board& board) override { serve_room(board, arena_); }

 private:
  Allocator& arena_;
};

class Fulfiller;

// What a worker sees of the ticket that it claimed: where the result goes.
// One thread. Ends with exactly one finish_*; each returns false if the ticket was taken away
// meanwhile (it timed out), and then whatever was to be handed over is still the caller's.
class Slot {
 public:
  // Two kinds of access to what is the ticket's only as long as the worker has it. False: the
  // ticket was taken away, the post and unit are another ticket's or will be, and the batch may be
  // with its user. Whoever takes a ticket away from a thread first moves the unit's word, then
  // waits for the accesses that began before. No user code runs inside either.
  //
  //   Look   of the post and the unit: a few instructions. The supervisor waits for its end.
  //   Write  into rows(), and reading the elements for it: a file may hang. The supervisor goes on
  //          after a while, and neither delivers the batch nor uses its memory again.
  template <uint32_t kOne>
  class Access {
   public:
    explicit Access(Slot& slot) : inside_(slot.board_.place(slot.claim_.worker).inside) {
      inside_.fetch_add(kOne, std::memory_order_seq_cst);
      ours_ = slot.board_.holds(slot.claim_);
    }
    ~Access() { inside_.fetch_sub(kOne, std::memory_order_release); }
    Access(const Access&) = delete;
    Access& operator=(const Access&) = delete;
    explicit operator bool() const { return ours_; }

   private:
    std::atomic<uint32_t>& inside_;
    bool ours_;
  };
  static constexpr uint32_t kLook = 1, kWrite = 1 << 16;  // WorkerPlace::inside
  using Look = Access<kLook>;
  using Write = Access<kWrite>;

  Slot(Board& board, const Board::Claim& claim, RowMemory* memory, Fulfiller& worker)
      : board_(board), claim_(claim), memory_(memory), worker_(worker) {}

  const Board::Claim& claim() const { return claim_; }
  // Copies what the post asks for; ticket() and indices() need it. False: it was taken away.
  bool read_ticket();
  const Ticket& ticket() const { return ticket_; }
  WorkerCounters& counters() { return board_.place(claim_.worker).counters; }

  // What is in hand from now on (a row counted from the ticket's begin): it is blamed if the ticket
  // times out or kills its worker. False: the ticket was taken away, so whatever is made of it is
  // for nothing.
  bool progress(const Call& call) {
    if (!board_.holds(claim_)) return false;
    board_.place(claim_.worker).in_hand.store(call.word(), std::memory_order_relaxed);
    return true;
  }
  Call in_hand() const {
    return Call::of(board_.place(claim_.worker).in_hand.load(std::memory_order_relaxed));
  }
  // What was done so far is not the ticket's own work: its time begins now.
  void restart_clock() {
    Look ours(*this);
    if (ours) claim_.unit->claimed_ns.store(0, std::memory_order_relaxed);
  }
  // Of what timed out or killed its worker, and is not to be tried again.
  std::optional<Board::Ending> ending(const Call& call) const {
    return any_poisoned() ? board_.ending(claim_, call) : std::nullopt;
  }
  bool any_poisoned() const { return board_.any_poisoned(claim_); }

  // Memory for the whole batch, shared by all its granules. The first to come proposes the layout
  // (bytes that describe it, and how much room it takes); may wait for room. nullptr: the batch has
  // another layout already, see layout(). Error kOutOfMemory, kClosed (also: taken away).
  // `row` of the batch: whose sample has this layout.
  std::byte* rows(std::span<const std::byte> layout, uint64_t bytes, uint32_t row = 0);
  // A copy. Error kClosed: the ticket was taken away.
  std::vector<std::byte> layout();

  // A packet that fits goes inline.
  static constexpr size_t kInline = sizeof(Unit::packet);
  bool finish_inline(ResultKind kind, uint64_t payload_bytes, std::span<const std::byte> packet);
  bool finish_block(ResultKind kind, uint64_t payload_bytes, const BlockRef& block,
                    uint32_t packet_bytes);
  // Workers of the consumer's own process: Unit::object carries the result.
  bool finish_object(ResultKind kind, uint64_t payload_bytes, void* object);

  // The explicit indices that the ticket carries, in the feed's arena; nullptr: the plan's order.
  std::byte* indices() {
    return ticket_.indices_offset != 0 ? memory_->at(ticket_.indices_offset) : nullptr;
  }

  // The result goes over the link; the supervisor finishes the ticket when it is there.
  void leave_to_supervisor() { finished_ = true; }

  bool finished() const { return finished_; }
  bool taken_away() const { return taken_away_; }    // by the supervisor: it took too long
  uint64_t waited_ns() const { return waited_ns_; }  // for room

 private:
  bool begin_result();
  void propose(uint32_t word, std::span<const std::byte> layout, uint64_t bytes, uint32_t row);
  void wait_for_room(uint32_t word);

  Board& board_;
  Board::Claim claim_;
  Ticket ticket_;
  RowMemory* memory_;
  Fulfiller& worker_;
  bool finished_ = false;
  bool taken_away_ = false;
  bool asked_ = false;  // for the room that the post is waiting for
  uint64_t waited_ns_ = 0;
};

// Whatever makes tickets true: the one interface of workers in line, in threads and in processes.
class Fulfiller {
 public:
  virtual ~Fulfiller() = default;
  // Makes what `ticket` asks for and finishes `slot`. On the worker's own thread. Throwing is for
  // penstock's own errors (no memory, closed); what user code raises is a result.
  virtual void run(const Ticket& ticket, Slot& slot) = 0;
  // Called around every sleep of the worker: where Python's lock is let go and taken again.
  virtual void before_wait() {}
  virtual void after_wait() {}
  // Asked between tickets: whether somebody waits for what it holds. If so, it is called to let go.
  virtual bool wanted() const { return false; }
  virtual void give_way() {}
  // Called between tickets, when it has slept: what was sent meanwhile may be taken in now.
  virtual void catch_up() {}
};

// What the post asks for. REQUIRED: the post is still the claim's; a worker has Slot::ticket().
Ticket ticket_of(const Board::Claim& claim);

// The error that ended a ticket. REQUIRED: ResultKind::kBroken.
Error error_in(const Unit& unit);

// Claims and runs tickets until the board closes, or until a ticket was taken away from this
// worker: somebody else has its place by then.
void serve(Board& board, uint32_t worker, Fulfiller& fulfiller, RowMemory* memory);
// Runs the open units of one post: the consumer working in line.
void serve_post(Board& board, uint32_t worker, uint64_t seq, Fulfiller& fulfiller,
                RowMemory* memory);

}  // namespace penstock
