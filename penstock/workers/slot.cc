#include "penstock/workers/slot.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/fork_aware.h"
#include "penstock/memory/allocator.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

namespace {

// Counts a server before it takes an entry, until the entry's memory is decided.
class SpaceServer {
 public:
  explicit SpaceServer(std::atomic<uint32_t>& count) : count_(count) { count_.fetch_add(1); }
  ~SpaceServer() { count_.fetch_sub(1); }
  SpaceServer(const SpaceServer&) = delete;
  SpaceServer& operator=(const SpaceServer&) = delete;

 private:
  std::atomic<uint32_t>& count_;
};

}  // namespace

bool serve_space_requests(TicketRing& ring, Allocator& arena) {
  bool all = true;
  uint64_t head = ring.head();
  for (uint64_t seq = head, end = ring.posted(); seq < end; ++seq) {
    BatchEntry& entry = ring.entry_at(seq);
    // Several threads may be here at once: the thread that takes the entry out of kProposed serves
    // it. The consumer waits for that before it reuses the entry (see RingConsumer::close_layout).
    const SpaceServer here(ring.posted_at(seq).serving);
    uint32_t proposed = ring.layout_word(seq, LayoutState::kProposed);
    if (!entry.layout_state.compare_exchange_strong(
            proposed, ring.layout_word(seq, LayoutState::kProposing, BatchEntry::kServer))) {
      continue;
    }
    if (entry.block_bytes != 0) {
      arena.release(arena.region()->base() + entry.block_offset);
      entry.block_bytes = 0;
    }
    if (void* space = arena.allocate(entry.needed_bytes)) {
      entry.block_offset = arena.region()->offset_of(space);
      entry.block_bytes = entry.needed_bytes;
      ring.set_layout_state(seq, LayoutState::kReady);
    } else if (seq == ring.head() || ring.number() != 0) {
      // Further lanes fail immediately: the batches that use the memory may wait for these workers.
      ring.set_layout_state(seq, LayoutState::kNoSpace);
    } else {
      ring.set_layout_state(seq, LayoutState::kProposed);
      all = false;
    }
  }
  return all;
}

std::byte* LocalMemory::at(uint64_t offset) { return arena_.region()->base() + offset; }

bool LocalMemory::holds(uint64_t offset, uint64_t bytes) {
  return offset < arena_.region()->reserve() && arena_.bytes_of(at(offset)) >= bytes;
}

namespace {

constexpr int64_t kLookAgainNs = 20'000'000;  // how often a wait for space checks for closing

}  // namespace

bool Slot::read_ticket() {
  Look ours(*this);
  if (!ours) return false;
  ticket_ = ticket_of(claim_);
  return true;
}

std::byte* Slot::memory(std::span<const std::byte> layout, uint64_t bytes, uint32_t row) {
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
        const uint64_t offset = entry.block_offset;
        if (ring_.shared() && !memory_->holds(offset, bytes)) {
          throw Error(Code::kDataLoss, "batch", "a worker process damaged the place of a batch");
        }
        return memory_->at(offset);
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
  bool ready = entry.block_bytes >= bytes;
  // Only workers of the batch's other granules wait for the memory.
  const bool awaited = entry.granules.load(std::memory_order_relaxed) > 1;
  ring_.set_layout_state(claim_.seq, ready ? LayoutState::kReady : LayoutState::kProposed, awaited);
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
    if (!ours) return;  // memory() notices that, too
    since = claim_.task->claimed_ns.exchange(kClockStopped, std::memory_order_relaxed);
  }
  uint64_t begin = now_ns();
  worker_.before_wait();
  bool ask = BatchEntry::layout_state_of(word) == LayoutState::kProposed && !asked_;
  if (ask) {
    memory_->request(ring_);
    asked_ = true;
  } else {
    auto woken = os::futex_wait(entry.layout_state, word, kLookAgainNs, ring_.shared());
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

// `fill` writes the rest of the result into the task.
template <class Fill>
bool Slot::finish(ResultKind kind, uint64_t payload_bytes, const Fill& fill) {
  finished_ = true;
  taken_away_ = !ring_.begin_result(claim_);
  if (taken_away_) return false;
  Task& task = *claim_.task;
  task.kind = kind;
  task.bytes = payload_bytes;
  fill(task);
  ring_.finish(claim_);
  return true;
}

bool Slot::finish_inline(ResultKind kind, uint64_t payload_bytes,
                         std::span<const std::byte> packet) {
  return finish(kind, payload_bytes, [&](Task& task) {
    task.length = static_cast<uint32_t>(packet.size());
    std::copy(packet.begin(), packet.end(), task.packet);
  });
}

bool Slot::finish_block(ResultKind kind, uint64_t payload_bytes, const BlockRef& block,
                        uint32_t packet_bytes) {
  return finish(kind, payload_bytes, [&](Task& task) {
    task.length = packet_bytes;
    task.block = block;
  });
}

bool Slot::finish_object(ResultKind kind, uint64_t payload_bytes, void* object) {
  return finish(kind, payload_bytes,
                [&](Task& task) { task.object = reinterpret_cast<uint64_t>(object); });
}

bool Slot::finish_spill(ResultKind kind, uint64_t payload_bytes, std::unique_ptr<Spill> spill) {
  return finish(kind, payload_bytes,
                [&](Task& task) { write_spill(task, kind, payload_bytes, std::move(spill)); });
}

namespace {

// The spills that no consumer has taken yet, by number. Rings are shared with worker processes,
// which must not make this process follow a pointer.
class Spills final : private ForkAware {
 public:
  Spills() { watch_forks(); }

  uint64_t add(std::unique_ptr<Spill> spill) {
    const std::lock_guard lock(mutex_);
    kept_.emplace(++last_, std::move(spill));
    return last_;
  }

  std::unique_ptr<Spill> take(uint64_t number) {
    const std::lock_guard lock(mutex_);
    auto found = kept_.extract(number);
    return found ? std::move(found.mapped()) : nullptr;
  }

 private:
  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork_in_parent() noexcept override { mutex_.unlock(); }
  void after_fork_in_child() noexcept override { mutex_.unlock(); }

  std::mutex mutex_;
  uint64_t last_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Spill>> kept_;
};

Spills& spills() {
  static Spills& one = *new Spills;  // never destroyed: threads may end after static objects
  return one;
}

}  // namespace

std::unique_ptr<Spill> take_spill(Task& task) {
  return spills().take(std::exchange(task.object, uint64_t{0}));
}

std::string_view text_in(const Task& task) {
  return {reinterpret_cast<const char*>(task.packet),
          std::min<size_t>(task.length, sizeof(task.packet))};
}

void write_spill(Task& task, ResultKind kind, uint64_t payload_bytes,
                 std::unique_ptr<Spill> spill) {
  task.kind = kind;
  task.bytes = payload_bytes;
  task.length = sizeof(task.packet) + 1;
  task.block = {0, spill->size, 0, kSpilled};
  task.object = spills().add(std::move(spill));
}

Ticket ticket_of(const TicketRing::Claim& claim) {
  const BatchEntry& entry = *claim.entry;
  const uint64_t share = entry.granule_rows(), rows = entry.rows;
  const auto begin = static_cast<uint32_t>(std::min(claim.granule * share, rows));
  return {entry.epoch,
          entry.base,
          entry.step,
          entry.version,
          entry.rows,
          begin,
          static_cast<uint32_t>(std::min(begin + share, rows)),
          entry.stream,
          claim.lane,
          entry.rows_together != 0,
          entry.input_offset};
}

}  // namespace penstock
