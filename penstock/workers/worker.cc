#include "penstock/workers/worker.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <string>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/memory/allocator.h"

namespace penstock {

namespace {

constexpr int64_t kLookAgainNs = 20'000'000;  // a wait for room looks for closing this often

void set_state(Board& board, Post& post, uint64_t seq, LayoutState state, bool awaited = true) {
  post.layout_state.store(board.layout_word(seq, state), std::memory_order_seq_cst);
  if (!awaited) return;
  os::futex_wake(post.layout_state, 1 << 20, board.fd() >= 0);
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), Slot::kInline)));
}

// An error as a packet: its code, the length of its operation, the operation, its text; as much of
// it as has room.
std::string packet_of(const Error& error) {
  const std::string operation = error.operation().substr(0, UINT8_MAX);
  std::string text = error.what();
  if (text.starts_with(operation + ": ")) text.erase(0, operation.size() + 2);
  return std::string{static_cast<char>(error.code()), static_cast<char>(operation.size())} +
         operation + text;
}

}  // namespace

Error error_in(const Unit& unit) {
  const auto* packet = reinterpret_cast<const char*>(unit.packet);
  const auto length = static_cast<uint8_t>(packet[1]);
  return {static_cast<Code>(packet[0]), std::string(packet + 2, length),
          std::string(packet + 2 + length, unit.length - 2 - length)};
}

bool serve_room(Board& board, Allocator& arena) {
  bool all = true;
  uint64_t head = board.head();
  for (uint64_t seq = head, end = board.posted(); seq < end; ++seq) {
    Post& post = board.post_at(seq);
    // Whoever takes the post out of kProposed serves it: several threads may be here at once.
    // Until it is done the consumer does not let go of the place (see Board::close_layout).
    uint32_t proposed = board.layout_word(seq, LayoutState::kProposed);
    if (!post.layout_state.compare_exchange_strong(
            proposed, board.layout_word(seq, LayoutState::kProposing, Post::kServer))) {
      continue;
    }
    if (post.slot_bytes != 0) {
      arena.release(arena.region()->base() + post.slot_offset);
      post.slot_bytes = 0;
    }
    if (void* room = arena.allocate(post.needed_bytes)) {
      post.slot_offset = arena.region()->offset_of(room);
      post.slot_bytes = post.needed_bytes;
      set_state(board, post, seq, LayoutState::kReady);
    } else if (seq == board.head() || board.number() != 0) {
      // Further lanes do not wait: the batches that hold the room may be waiting for these workers.
      set_state(board, post, seq, LayoutState::kNoRoom);
    } else {
      set_state(board, post, seq, LayoutState::kProposed);
      all = false;
    }
  }
  return all;
}

std::byte* LocalRows::at(uint64_t offset) { return arena_.region()->base() + offset; }

bool Slot::read_ticket() {
  Look ours(*this);
  if (!ours) return false;
  ticket_ = ticket_of(claim_);
  return true;
}

std::byte* Slot::rows(std::span<const std::byte> layout, uint64_t bytes, uint32_t row) {
  if (layout.size() > kLayoutBytes) {
    throw Error(Code::kInvalidArgument, "batch",
                "a sample has too many arrays to be described in 16 KiB; give collate=");
  }
  Post& post = *claim_.post;
  for (;;) {
    uint32_t word;
    {
      Look ours(*this);  // until the end of this block the place stays this post's
      if (!ours || board_.closed() || claim_.seq < board_.head()) {
        throw Error(Code::kClosed, "worker", "the ticket was withdrawn");
      }
      word = post.layout_state.load(std::memory_order_acquire);
      LayoutState state = Post::layout_state_of(word);
      if (state == LayoutState::kReady) {
        if (post.layout_length != layout.size() ||
            std::memcmp(post.layout, layout.data(), layout.size()) != 0) {
          return nullptr;
        }
        return memory_->at(post.slot_offset);
      }
      if (state == LayoutState::kNoRoom) {
        throw Error(Code::kOutOfMemory, "batch",
                    "no room for a batch of " + std::to_string(post.needed_bytes) + " bytes");
      }
      if (state == LayoutState::kNone) {
        propose(word, layout, bytes, row);
        continue;
      }
    }
    wait_for_room(word);
  }
}

void Slot::propose(uint32_t word, std::span<const std::byte> layout, uint64_t bytes, uint32_t row) {
  Post& post = *claim_.post;
  uint32_t mine = board_.layout_word(claim_.seq, LayoutState::kProposing, claim_.worker);
  if (!post.layout_state.compare_exchange_strong(word, mine)) return;
  std::memcpy(post.layout, layout.data(), layout.size());
  post.layout_length = static_cast<uint32_t>(layout.size());
  post.layout_row = row;
  post.needed_bytes = bytes;
  bool ready = post.slot_bytes >= bytes;
  // Only workers of the batch's other granules wait for its memory.
  const bool awaited = post.granules.load(std::memory_order_relaxed) > 1;
  set_state(board_, post, claim_.seq, ready ? LayoutState::kReady : LayoutState::kProposed,
            awaited);
  asked_ = false;
}

std::vector<std::byte> Slot::layout() {
  Look ours(*this);
  if (!ours) throw Error(Code::kClosed, "worker", "the ticket was taken away");
  const std::byte* layout = claim_.post->layout;
  return {layout, layout + claim_.post->layout_length};
}

// Time spent here is not the ticket's: it is not its fault, and it does not time out.
void Slot::wait_for_room(uint32_t word) {
  Post& post = *claim_.post;
  uint64_t since = 0;
  {
    Look ours(*this);
    if (!ours) return;  // rows() finds that, too
    since = claim_.unit->claimed_ns.exchange(kClockStopped, std::memory_order_relaxed);
  }
  uint64_t begin = now_ns();
  worker_.before_wait();
  bool ask = Post::layout_state_of(word) == LayoutState::kProposed && !asked_;
  if (ask) {
    memory_->request(board_);
    asked_ = true;
  } else {
    auto woken = os::futex_wait(post.layout_state, word, kLookAgainNs, board_.fd() >= 0);
    if (woken == os::Woken::kTimeout) asked_ = false;
  }
  worker_.after_wait();
  uint64_t waited = now_ns() - begin;
  waited_ns_ += waited;
  Look ours(*this);
  if (ours) {
    claim_.unit->claimed_ns.store(since == 0 ? 0 : since + waited, std::memory_order_relaxed);
  }
}

bool Slot::begin_result() {
  finished_ = true;
  taken_away_ = !board_.begin_result(claim_);
  return !taken_away_;
}

bool Slot::finish_inline(ResultKind kind, uint64_t payload_bytes,
                         std::span<const std::byte> packet) {
  if (!begin_result()) return false;
  Unit& unit = *claim_.unit;
  unit.kind = kind;
  unit.bytes = payload_bytes;
  unit.length = static_cast<uint32_t>(packet.size());
  std::copy(packet.begin(), packet.end(), unit.packet);
  board_.finish(claim_);
  return true;
}

bool Slot::finish_block(ResultKind kind, uint64_t payload_bytes, const BlockRef& block,
                        uint32_t packet_bytes) {
  if (!begin_result()) return false;
  Unit& unit = *claim_.unit;
  unit.kind = kind;
  unit.bytes = payload_bytes;
  unit.length = packet_bytes;
  unit.block = block;
  board_.finish(claim_);
  return true;
}

bool Slot::finish_object(ResultKind kind, uint64_t payload_bytes, void* object) {
  if (!begin_result()) return false;
  Unit& unit = *claim_.unit;
  unit.kind = kind;
  unit.bytes = payload_bytes;
  unit.object = reinterpret_cast<uint64_t>(object);
  board_.finish(claim_);
  return true;
}

Ticket ticket_of(const Board::Claim& claim) {
  const Post& post = *claim.post;
  uint32_t share = (post.rows + post.granules - 1) / post.granules;
  uint32_t begin = std::min(claim.granule * share, post.rows);
  return {post.epoch,
          post.base,
          post.step,
          post.version,
          post.rows,
          begin,
          std::min(begin + share, post.rows),
          post.stream,
          claim.lane,
          post.rows_together,
          post.indices_offset};
}

namespace {

class Serving {
 public:
  explicit Serving(WorkerPlace& place) : place_(place) { place_.serving.store(1); }
  ~Serving() { place_.serving.store(0); }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

 private:
  WorkerPlace& place_;
};

// Where a worker's time goes.
class Stopwatch {
 public:
  explicit Stopwatch(WorkerPlace& place) : place_(place), trace_(&place.trace), mark_(now_ns()) {
    // The worker that had this place died waiting.
    if (place_.waiting_since.load() != 0) mark_ = count_wait(UINT64_MAX);
  }

  void ran(const Ticket& ticket, uint32_t granule, uint64_t waited_ns) {
    place_.counters.tickets.add_single_writer();
    ++untimed_;
    ticket_ = ticket;
    granule_ = granule;
    if (quick_ && waited_ns == 0 && untimed_ < kUntimed) return;
    uint64_t end = settle();
    if (waited_ns == 0) return;
    // Counted as busy so far.
    place_.counters.busy_ns.add_single_writer(-waited_ns);
    place_.counters.wait_slot_ns.add_single_writer(waited_ns);
    trace_.record(TraceKind::kWaitSlot, end - waited_ns, end, ticket.epoch, ticket.step);
  }

  // Accounts for the tickets that were not yet. Returns the time.
  uint64_t settle() {
    if (untimed_ == 0) return mark_;
    uint64_t end = now_ns();
    uint64_t each = (end - mark_) / untimed_;
    place_.counters.busy_ns.add_single_writer(end - mark_);
    trace_.record(TraceKind::kUser, mark_, end, ticket_.epoch, ticket_.step, granule_);
    uint64_t mean = place_.ticket_ns.load(std::memory_order_relaxed);
    place_.ticket_ns.store(mean == 0 ? each : mean - mean / 8 + each / 8,
                           std::memory_order_relaxed);
    quick_ = each < kQuickNs;
    untimed_ = 0;
    mark_ = end;
    return end;
  }

  // The wait has ended, and counts if it was marked as one: up to `last`, a point in time.
  void waited(uint64_t last = UINT64_MAX) {
    uint64_t end;
    if (place_.waiting_since.load(std::memory_order_relaxed) != 0) {
      end = count_wait(last);
    } else {
      end = now_ns();
    }
    trace_.record(TraceKind::kWaitTicket, mark_, end);
    mark_ = end;
  }

 private:
  // Returns the time. It is read when nobody counts the wait as one that lasts any more, so that
  // what was seen of it is not more than this.
  uint64_t count_wait(uint64_t last) {
    const uint64_t since = place_.waiting_since.exchange(WorkerPlace::kCounting);
    std::atomic_thread_fence(std::memory_order_release);
    const uint64_t end = now_ns();
    if (since != WorkerPlace::kCounting) {
      place_.counters.wait_ticket_ns.add_single_writer(std::max(std::min(end, last), since) -
                                                       since);
    }
    place_.waiting_since.store(0, std::memory_order_release);
    return end;
  }

  WorkerPlace& place_;
  TraceWriter trace_;
  uint64_t mark_;
  uint32_t untimed_ = 0;
  bool quick_ = false;
  Ticket ticket_;  // the last one
  uint32_t granule_ = 0;
};

// Runs one claim. False: the ticket was taken away meanwhile.
bool run_claim(Board& board, const Board::Claim& claim, Fulfiller& fulfiller, RowMemory* memory,
               Stopwatch& watch) {
  Slot slot(board, claim, memory, fulfiller);
  if (!slot.read_ticket()) return false;
  try {
    fulfiller.run(slot.ticket(), slot);
  } catch (const Error& error) {
    if (!slot.finished()) {
      if (error.code() == Code::kClosed) {
        slot.finish_inline(ResultKind::kNone, 0, {});
      } else if (error.code() == Code::kOutOfMemory) {
        slot.finish_inline(ResultKind::kNoRoom, 0, bytes_of(error.what()));
      } else {
        slot.finish_inline(ResultKind::kBroken, 0, bytes_of(packet_of(error)));
      }
    }
  } catch (const std::bad_alloc&) {
    if (!slot.finished()) slot.finish_inline(ResultKind::kNoRoom, 0, bytes_of("no memory is left"));
  } catch (const std::exception& error) {
    if (!slot.finished()) {
      const Error broken(Code::kInternal, "worker", error.what());
      slot.finish_inline(ResultKind::kBroken, 0, bytes_of(packet_of(broken)));
    }
  }
  if (slot.taken_away()) return false;
  watch.ran(slot.ticket(), claim.granule, slot.waited_ns());
  return true;
}

}  // namespace

void serve(Board& board, uint32_t worker, Fulfiller& fulfiller, RowMemory* memory) {
  WorkerPlace& place = board.place(worker);
  const Serving serving(place);
  Stopwatch watch(place);
  std::array<uint64_t, kMaxLanes> cursors{};
  Board::Claim claim;
  // What the consumer waits for comes before what is made for later.
  auto claim_any = [&] {
    for (uint32_t l = 0; l < board.lanes(); ++l) {
      if (board.lane(l).claim(worker, cursors[l], claim)) return true;
    }
    return false;
  };
  while (!board.closed()) {
    if (fulfiller.wanted()) {
      place.waiting_since.store(watch.settle());
      fulfiller.give_way();
      watch.waited();
    }
    if (!board.spare(worker) && claim_any()) {
      if (!run_claim(board.lane(claim.lane), claim, fulfiller, memory, watch)) return;
      continue;
    }
    const uint64_t since = watch.settle();
    fulfiller.before_wait();
    board.wait_for_work(worker, cursors[0], since);
    if (cursors[0] == UINT64_MAX) cursors.fill(UINT64_MAX);
    fulfiller.after_wait();
    // Behind the last batch there was nothing to wait for.
    watch.waited(board.closed() ? board.consumer().last_ns.get() : UINT64_MAX);
    fulfiller.catch_up();
  }
}

void serve_post(Board& board, uint32_t worker, uint64_t seq, Fulfiller& fulfiller,
                RowMemory* memory) {
  Stopwatch watch(board.place(worker));
  Board::Claim claim;
  while (board.claim_of(worker, seq, claim)) {
    if (!run_claim(board, claim, fulfiller, memory, watch)) return;
  }
}

}  // namespace penstock
