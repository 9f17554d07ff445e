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

constexpr int64_t kLookAgainNs = 20'000'000;  // how often a wait for space checks for closing

void set_state(TicketRing& ring, BatchEntry& entry, uint64_t seq, LayoutState state,
               bool awaited = true) {
  entry.layout_state.store(ring.layout_word(seq, state), std::memory_order_seq_cst);
  if (!awaited) return;
  os::futex_wake(entry.layout_state, 1 << 20, ring.fd() >= 0);
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), std::min(text.size(), Slot::kInline)));
}

// An error as a packet: code, length of the operation, operation, text; the text is cut to fit.
std::string packet_of(const Error& error) {
  const std::string operation = error.operation().substr(0, UINT8_MAX);
  std::string text = error.what();
  if (text.starts_with(operation + ": ")) text.erase(0, operation.size() + 2);
  return std::string{static_cast<char>(error.code()), static_cast<char>(operation.size())} +
         operation + text;
}

}  // namespace

Error error_in(const Task& task) {
  const auto* packet = reinterpret_cast<const char*>(task.packet);
  const auto length = static_cast<uint8_t>(packet[1]);
  return {static_cast<Code>(packet[0]), std::string(packet + 2, length),
          std::string(packet + 2 + length, task.length - 2 - length)};
}

bool serve_space_requests(TicketRing& ring, Allocator& arena) {
  bool all = true;
  uint64_t head = ring.head();
  for (uint64_t seq = head, end = ring.posted(); seq < end; ++seq) {
    BatchEntry& entry = ring.entry_at(seq);
    // Several threads may be here at once: the thread that takes the entry out of kProposed serves
    // it. The consumer waits for that before it reuses the entry (see TicketRing::close_layout).
    uint32_t proposed = ring.layout_word(seq, LayoutState::kProposed);
    if (!entry.layout_state.compare_exchange_strong(
            proposed, ring.layout_word(seq, LayoutState::kProposing, BatchEntry::kServer))) {
      continue;
    }
    if (entry.slot_bytes != 0) {
      arena.release(arena.region()->base() + entry.slot_offset);
      entry.slot_bytes = 0;
    }
    if (void* space = arena.allocate(entry.needed_bytes)) {
      entry.slot_offset = arena.region()->offset_of(space);
      entry.slot_bytes = entry.needed_bytes;
      set_state(ring, entry, seq, LayoutState::kReady);
    } else if (seq == ring.head() || ring.number() != 0) {
      // Further lanes fail immediately: the batches that use the memory may wait for these workers.
      set_state(ring, entry, seq, LayoutState::kNoSpace);
    } else {
      set_state(ring, entry, seq, LayoutState::kProposed);
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
  BatchEntry& entry = *claim_.entry;
  for (;;) {
    uint32_t word;
    {
      Look ours(*this);  // up to the end of this block the place belongs to this entry
      if (!ours || ring_.closed() || claim_.seq < ring_.head()) {
        throw Error(Code::kClosed, "worker", "the ticket was withdrawn");
      }
      word = entry.layout_state.load(std::memory_order_acquire);
      LayoutState state = BatchEntry::layout_state_of(word);
      if (state == LayoutState::kReady) {
        if (entry.layout_length != layout.size() ||
            std::memcmp(entry.layout, layout.data(), layout.size()) != 0) {
          return nullptr;
        }
        return memory_->at(entry.slot_offset);
      }
      if (state == LayoutState::kNoSpace) {
        throw Error(Code::kOutOfMemory, "batch",
                    "no space for a batch of " + std::to_string(entry.needed_bytes) + " bytes");
      }
      if (state == LayoutState::kNone) {
        propose(word, layout, bytes, row);
        continue;
      }
    }
    wait_for_space(word);
  }
}

void Slot::propose(uint32_t word, std::span<const std::byte> layout, uint64_t bytes, uint32_t row) {
  BatchEntry& entry = *claim_.entry;
  uint32_t mine = ring_.layout_word(claim_.seq, LayoutState::kProposing, claim_.worker);
  if (!entry.layout_state.compare_exchange_strong(word, mine)) return;
  std::memcpy(entry.layout, layout.data(), layout.size());
  entry.layout_length = static_cast<uint32_t>(layout.size());
  entry.layout_row = row;
  entry.needed_bytes = bytes;
  bool ready = entry.slot_bytes >= bytes;
  // Only workers of the batch's other granules wait for the memory.
  const bool awaited = entry.granules.load(std::memory_order_relaxed) > 1;
  set_state(ring_, entry, claim_.seq, ready ? LayoutState::kReady : LayoutState::kProposed,
            awaited);
  asked_ = false;
}

std::vector<std::byte> Slot::layout() {
  Look ours(*this);
  if (!ours) throw Error(Code::kClosed, "worker", "the ticket was taken away");
  const std::byte* layout = claim_.entry->layout;
  return {layout, layout + claim_.entry->layout_length};
}

// Time spent here does not count towards the ticket's timeout.
void Slot::wait_for_space(uint32_t word) {
  BatchEntry& entry = *claim_.entry;
  uint64_t since = 0;
  {
    Look ours(*this);
    if (!ours) return;  // rows() notices that, too
    since = claim_.task->claimed_ns.exchange(kClockStopped, std::memory_order_relaxed);
  }
  uint64_t begin = now_ns();
  worker_.before_wait();
  bool ask = BatchEntry::layout_state_of(word) == LayoutState::kProposed && !asked_;
  if (ask) {
    memory_->request(ring_);
    asked_ = true;
  } else {
    auto woken = os::futex_wait(entry.layout_state, word, kLookAgainNs, ring_.fd() >= 0);
    if (woken == os::Woken::kTimeout) asked_ = false;
  }
  worker_.after_wait();
  uint64_t waited = now_ns() - begin;
  waited_ns_ += waited;
  Look ours(*this);
  if (ours) {
    claim_.task->claimed_ns.store(since == 0 ? 0 : since + waited, std::memory_order_relaxed);
  }
}

bool Slot::begin_result() {
  finished_ = true;
  taken_away_ = !ring_.begin_result(claim_);
  return !taken_away_;
}

bool Slot::finish_inline(ResultKind kind, uint64_t payload_bytes,
                         std::span<const std::byte> packet) {
  if (!begin_result()) return false;
  Task& task = *claim_.task;
  task.kind = kind;
  task.bytes = payload_bytes;
  task.length = static_cast<uint32_t>(packet.size());
  std::copy(packet.begin(), packet.end(), task.packet);
  ring_.finish(claim_);
  return true;
}

bool Slot::finish_block(ResultKind kind, uint64_t payload_bytes, const BlockRef& block,
                        uint32_t packet_bytes) {
  if (!begin_result()) return false;
  Task& task = *claim_.task;
  task.kind = kind;
  task.bytes = payload_bytes;
  task.length = packet_bytes;
  task.block = block;
  ring_.finish(claim_);
  return true;
}

bool Slot::finish_object(ResultKind kind, uint64_t payload_bytes, void* object) {
  if (!begin_result()) return false;
  Task& task = *claim_.task;
  task.kind = kind;
  task.bytes = payload_bytes;
  task.object = reinterpret_cast<uint64_t>(object);
  ring_.finish(claim_);
  return true;
}

Ticket ticket_of(const TicketRing::Claim& claim) {
  const BatchEntry& entry = *claim.entry;
  uint32_t share = (entry.rows + entry.granules - 1) / entry.granules;
  uint32_t begin = std::min(claim.granule * share, entry.rows);
  return {entry.epoch,
          entry.base,
          entry.step,
          entry.version,
          entry.rows,
          begin,
          std::min(begin + share, entry.rows),
          entry.stream,
          claim.lane,
          entry.rows_together,
          entry.indices_offset};
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

// Counts a worker's time: busy with tickets, or waiting for them.
class Stopwatch {
 public:
  explicit Stopwatch(WorkerPlace& place) : place_(place), trace_(&place.trace), mark_(now_ns()) {
    // The previous worker of this place died waiting.
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
    // The time up to here was busy.
    place_.counters.busy_ns.add_single_writer(-waited_ns);
    place_.counters.wait_slot_ns.add_single_writer(waited_ns);
    trace_.record(TraceKind::kWaitSlot, end - waited_ns, end, ticket.epoch, ticket.step);
  }

  // Counts the tickets done since the last call. Returns the time.
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

  // The wait has ended. It counts up to the time `last`, if it was marked as a wait.
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
  // Returns the time. Read after the mark is gone, so that no reader has counted more of the wait
  // than this.
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
bool run_claim(TicketRing& ring, const TicketRing::Claim& claim, TicketRunner& runner,
               RowMemory* memory, Stopwatch& watch) {
  Slot slot(ring, claim, memory, runner);
  if (!slot.read_ticket()) return false;
  try {
    runner.run(slot.ticket(), slot);
  } catch (const Error& error) {
    if (!slot.finished()) {
      if (error.code() == Code::kClosed) {
        slot.finish_inline(ResultKind::kNone, 0, {});
      } else if (error.code() == Code::kOutOfMemory) {
        slot.finish_inline(ResultKind::kNoSpace, 0, bytes_of(error.what()));
      } else {
        slot.finish_inline(ResultKind::kBroken, 0, bytes_of(packet_of(error)));
      }
    }
  } catch (const std::bad_alloc&) {
    if (!slot.finished())
      slot.finish_inline(ResultKind::kNoSpace, 0, bytes_of("no memory is left"));
  } catch (const std::exception& error) {
    if (!slot.finished()) {
      const Error broken(Code::kInternal, "worker", error.what());
      slot.finish_inline(ResultKind::kBroken, 0, bytes_of(packet_of(broken)));
    }
  }
  if (slot.withdrawn()) return false;
  watch.ran(slot.ticket(), claim.granule, slot.waited_ns());
  return true;
}

}  // namespace

void serve(TicketRing& ring, uint32_t worker, TicketRunner& runner, RowMemory* memory) {
  WorkerPlace& place = ring.place(worker);
  const Serving serving(place);
  Stopwatch watch(place);
  std::array<uint64_t, kMaxLanes> cursors{};
  TicketRing::Claim claim;
  // The first lane first: the consumer waits for its batches.
  auto claim_any = [&] {
    for (uint32_t l = 0; l < ring.lanes(); ++l) {
      if (ring.lane(l).claim(worker, cursors[l], claim)) return true;
    }
    return false;
  };
  while (!ring.closed()) {
    if (runner.wanted()) {
      place.waiting_since.store(watch.settle());
      runner.give_way();
      watch.waited();
    }
    if (!ring.spare(worker) && claim_any()) {
      if (!run_claim(ring.lane(claim.lane), claim, runner, memory, watch)) return;
      continue;
    }
    const uint64_t since = watch.settle();
    runner.before_wait();
    ring.wait_for_work(worker, cursors[0], since);
    if (cursors[0] == UINT64_MAX) cursors.fill(UINT64_MAX);
    runner.after_wait();
    // Past the last batch there was nothing to wait for.
    watch.waited(ring.closed() ? ring.consumer().last_ns.get() : UINT64_MAX);
    runner.catch_up();
  }
}

void serve_entry(TicketRing& ring, uint32_t worker, uint64_t seq, TicketRunner& runner,
                 RowMemory* memory) {
  Stopwatch watch(ring.place(worker));
  TicketRing::Claim claim;
  while (ring.claim_of(worker, seq, claim)) {
    if (!run_claim(ring, claim, runner, memory, watch)) return;
  }
}

}  // namespace penstock
