#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "penstock/workers/ticket_ring.h"
#include "penstock/workers/ticket_ring_layout.h"

namespace penstock {

class Allocator;

// A worker's access to the memory of batches: the consumer's arena.
class BatchMemory {
 public:
  virtual ~BatchMemory() = default;
  // The address in this process of an offset in the consumer's arena.
  virtual std::byte* at(uint64_t offset) = 0;
  // Whether a block of the arena with at least `bytes` begins at this offset. The consumer's
  // process checks what its workers may have overwritten; workers believe the consumer.
  virtual bool holds(uint64_t offset, uint64_t bytes) {
    (void)offset, (void)bytes;
    return true;
  }
  // An entry's layout was proposed and needs memory: allocates it, or asks the consumer's process.
  virtual void request(TicketRing& ring) = 0;
};

// Allocates memory in the consumer's arena for every proposed entry of a lane. If no memory is
// left, the lowest undelivered entry (in further lanes: any entry) becomes kNoSpace, and others go
// on waiting. False: an entry still waits. In the consumer's process; any thread.
bool serve_space_requests(TicketRing& ring, Allocator& arena);

// BatchMemory in the consumer's own process. The arena outlives it.
class LocalMemory : public BatchMemory {
 public:
  explicit LocalMemory(Allocator& arena) : arena_(arena) {}
  std::byte* at(uint64_t offset) override;
  bool holds(uint64_t offset, uint64_t bytes) override;
  void request(TicketRing& ring) override { serve_space_requests(ring, arena_); }

 private:
  Allocator& arena_;
};

class TicketRunner;

// A self-contained packet that came over a link or a connection: its bytes in memory of the
// consumer's process. Task::object is its number there.
struct Spill {
  std::shared_ptr<std::byte[]> bytes;
  uint64_t size = 0;
};
inline constexpr uint32_t kSpilled = 0xffffffff;  // BlockRef::arena of such a packet

// A worker's view of the ticket that it claimed: the place of the result. One thread. Ends with
// exactly one finish_*. Each returns false if the ticket was taken away after a timeout; then the
// result still belongs to the caller.
class Slot {
 public:
  // Two kinds of access to the ticket's entry, task and batch. False: the ticket was taken away;
  // the entry and task may belong to another ticket, and the batch may be with its user. The
  // supervisor takes a ticket from a thread by first changing the task's word, then waiting for
  // accesses that began before. No user code runs inside an access.
  //
  //   - Look: of the entry and the task, a few instructions. The supervisor waits for its end.
  //   - Write: into memory(), and reading the elements for them, where a file may hang. After a
  //     while the supervisor stops waiting; it neither delivers the batch nor uses its memory
  //     again.
  template <uint32_t kOne>
  class Access {
   public:
    explicit Access(Slot& slot) : inside_(slot.ring_.place(slot.claim_.worker).inside) {
      inside_.fetch_add(kOne, std::memory_order_seq_cst);
      ours_ = slot.ring_.holds(slot.claim_);
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

  Slot(TicketRing& ring, const TicketRing::Claim& claim, BatchMemory* memory, TicketRunner& worker)
      : ring_(ring), claim_(claim), memory_(memory), worker_(worker) {}

  const TicketRing::Claim& claim() const { return claim_; }
  // Copies the ticket out of the entry, for ticket() and input(). False: it was taken away.
  bool read_ticket();
  const Ticket& ticket() const { return ticket_; }
  WorkerCounters& counters() { return ring_.place(claim_.worker).counters; }

  // Records the call that begins now (a row counted from the ticket's begin). The call is blamed if
  // the ticket times out or kills its worker. False: the ticket was taken away; stop working on it.
  bool progress(const Call& call) {
    if (!ring_.holds(claim_)) return false;
    ring_.place(claim_.worker).in_hand.store(call.word(), std::memory_order_relaxed);
    if (listener_ != nullptr) (*listener_)(call);
    return true;
  }
  // `listener` is called with every call that begins from now on; it outlives the slot. For a
  // worker whose supervisor is on another host.
  using CallListener = std::function<void(const Call&)>;
  void tell(const CallListener& listener) { listener_ = &listener; }
  Call in_hand() const {
    return Call::of(ring_.place(claim_.worker).in_hand.load(std::memory_order_relaxed));
  }
  // Restarts the ticket's timeout: the work so far was not the ticket's own.
  void restart_clock() {
    Look ours(*this);
    if (ours) claim_.task->claimed_ns.store(0, std::memory_order_relaxed);
  }
  // How a call ended that timed out or killed its worker, and must not be tried again.
  std::optional<TicketRing::Ending> ending(const Call& call) const {
    return any_poisoned() ? ring_.ending(claim_, call) : std::nullopt;
  }
  bool any_poisoned() const { return ring_.any_poisoned(claim_); }

  // Memory for the whole batch, shared by all its granules. The first granule proposes the layout
  // (bytes that describe it, and its size). May wait for space. nullptr: the batch has another
  // layout already, see layout(). Error kOutOfMemory, kClosed (also: taken away). `row`: the row of
  // the batch whose sample has this layout.
  std::byte* memory(std::span<const std::byte> layout, uint64_t bytes, uint32_t row = 0);
  // A copy. Error kClosed: the ticket was taken away.
  std::vector<std::byte> layout();

  // A packet that fits goes inline.
  static constexpr size_t kInline = sizeof(Task::packet);
  bool finish_inline(ResultKind kind, uint64_t payload_bytes, std::span<const std::byte> packet);
  bool finish_block(ResultKind kind, uint64_t payload_bytes, const BlockRef& block,
                    uint32_t packet_bytes);
  // For workers of the consumer's own process: Task::object carries the result.
  bool finish_object(ResultKind kind, uint64_t payload_bytes, void* object);
  // For a packet in memory of the consumer's own process.
  bool finish_spill(ResultKind kind, uint64_t payload_bytes, std::unique_ptr<Spill> spill);

  // The ticket's input, in the consumer's arena: a sampler's indices, or a StreamChunk. nullptr:
  // neither; the plan says which elements these are.
  std::byte* input() {
    return ticket_.input_offset != 0 ? memory_->at(ticket_.input_offset) : nullptr;
  }

  // The supervisor finishes the ticket: when the result arrives over the link, or because this
  // worker lost it.
  void leave_to_supervisor() { finished_ = true; }

  bool finished() const { return finished_; }
  bool withdrawn() const { return taken_away_; }     // by the supervisor, after a timeout
  uint64_t waited_ns() const { return waited_ns_; }  // for space

 private:
  template <class Fill>
  bool finish(ResultKind kind, uint64_t payload_bytes, const Fill& fill);
  void propose(uint32_t word, std::span<const std::byte> layout, uint64_t bytes, uint32_t row);
  void wait_for_space(uint32_t word);

  TicketRing& ring_;
  TicketRing::Claim claim_;
  Ticket ticket_;
  BatchMemory* memory_;
  TicketRunner& worker_;
  const CallListener* listener_ = nullptr;
  bool finished_ = false;
  bool taken_away_ = false;
  bool asked_ = false;  // space for the entry was requested
  uint64_t waited_ns_ = 0;
};

// Writes a spill as the result of a task in state writing.
void write_spill(Task& task, ResultKind kind, uint64_t payload_bytes, std::unique_ptr<Spill> spill);
// The spill that is a task's result, for the code that takes the result. nullptr: the number is no
// spill's (any more). Any thread.
std::unique_ptr<Spill> take_spill(Task& task);
// The text of an inline packet.
std::string_view text_in(const Task& task);

// The ticket of an entry. REQUIRED: the claim still holds the entry; a worker has Slot::ticket().
Ticket ticket_of(const TicketRing::Claim& claim);

}  // namespace penstock
