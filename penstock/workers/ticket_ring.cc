#include "penstock/workers/ticket_ring.h"

#include <algorithm>
#include <iterator>

#include "penstock/workers/ticket_ring_header.h"

namespace penstock {

Ledger TicketRing::ledger(uint32_t worker, uint32_t arena) {
  return {&places_[0].memory,    sizeof(WorkerPlace), workers_, worker,
          in_use(worker, arena), &common_->most_live};
}
BlocksInUse TicketRing::in_use(uint32_t worker, uint32_t arena) {
  return {std::shared_ptr<std::atomic<uint64_t>>(base_, &places_[worker].memory.in_use), arena};
}
void TicketRing::expect_in_use(uint64_t bytes) { atomic_max(common_->most_live, bytes); }
ConsumerCounters& TicketRing::consumer() { return header_->consumer; }

WorkerFigures TicketRing::figures(uint32_t worker) {
  WorkerPlace& place = places_[worker];
  WorkerFigures figures{};
  // A wait that ends meanwhile would be counted twice or not at all. Its worker may die in between.
  for (int tries = 0; tries < 100; ++tries) {
    const uint64_t since = place.waiting_since.load(std::memory_order_acquire);
    figures = figures_of(place.counters);
    const uint64_t last = consumer().last_ns.get();
    std::atomic_thread_fence(std::memory_order_acquire);
    if (since == WorkerPlace::kCounting || since != place.waiting_since.load()) continue;
    if (since != 0 && last > since) figures.wait_ticket_ns += last - since;
    break;
  }
  return figures;
}

TraceRing& TicketRing::consumer_trace() { return header_->consumer_trace; }
uint64_t TicketRing::head() const { return header_->head.load(std::memory_order_acquire); }
uint64_t TicketRing::posted() const { return header_->posted.load(std::memory_order_acquire); }

// ---- poisoned calls ----------------------------------------------------------------------------
//
// Each task has a list of its own. Its pages exist only once the list is written to. Items past its
// count belong to an earlier entry.

std::span<Poisoned> TicketRing::poisoned_of(const Claim& claim) const {
  const auto task = static_cast<size_t>(claim.task - task_ring_);
  return {poisoned_ring_ + task * max_poisoned_, max_poisoned_};
}

std::optional<TicketRing::Ending> TicketRing::ending(const Claim& claim, const Call& call) const {
  const uint32_t count = claim.task->poisoned.load(std::memory_order_acquire);
  for (const Poisoned& each : poisoned_of(claim).first(count)) {
    if (each.call.load(std::memory_order_relaxed) != call.word()) continue;
    const uint64_t ending = each.ending.load(std::memory_order_relaxed);
    return Ending{static_cast<uint32_t>(ending >> 8), static_cast<ResultKind>(ending & 0xff)};
  }
  return std::nullopt;
}

bool TicketRing::poison(const Claim& claim, const Call& call, ResultKind kind) {
  const uint32_t count = claim.task->poisoned.load(std::memory_order_relaxed);
  if (count == max_poisoned_ || ending(claim, call)) return false;
  Poisoned& next = poisoned_of(claim)[count];
  if (!there(&next, sizeof(Poisoned))) return false;
  next.call.store(call.word(), std::memory_order_relaxed);
  next.ending.store(uint64_t{claim.worker} << 8 | static_cast<uint64_t>(kind),
                    std::memory_order_relaxed);
  claim.task->poisoned.store(count + 1, std::memory_order_release);
  return true;
}

void TicketRing::set_exclusive(bool exclusive) {
  exclusive_.store(exclusive, std::memory_order_relaxed);
  for (auto& lane : inner_) lane->set_exclusive(exclusive);
}

// ---- the consumer ------------------------------------------------------------------------------

bool TicketRing::idle(uint64_t seq) {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    uint64_t word = task_at(seq, g).word.load(std::memory_order_acquire);
    if (Task::state_of(word) != TaskState::kIdle) return false;
  }
  return true;
}

bool TicketRing::can_post() const {
  uint64_t seq = header_->posted.load(std::memory_order_relaxed);
  if (seq - header_->head.load(std::memory_order_relaxed) >= entries_) return false;
  return const_cast<TicketRing*>(this)->idle(seq);
}

BatchEntry& TicketRing::next_entry() {
  uint64_t seq = header_->posted.load(std::memory_order_relaxed);
  BatchEntry& entry = entry_at(seq);
  entry.seq = seq;
  entry.layout_length = 0;
  entry.block_offset = entry.block_bytes = entry.needed_bytes = 0;
  entry.layout_state.store(layout_word(seq, LayoutState::kNone), std::memory_order_relaxed);
  entry.tainted.store(0, std::memory_order_relaxed);
  return entry;
}

// Tasks past the entry's last granule stay idle.
void TicketRing::publish(BatchEntry& entry) {
  for (uint32_t g = 0, end = granules_at(entry.seq); g < end; ++g) {
    Task& task = task_at(entry.seq, g);
    task.poisoned.store(0, std::memory_order_relaxed);
    task.claimed_ns.store(0, std::memory_order_relaxed);
    task.in_hand.store(0, std::memory_order_relaxed);
    task.kind = ResultKind::kNone;
    task.length = 0;
    task.bytes = 0;
    task.object = 0;
    task.word.store(Task::word_of(entry.seq, 0, 0, 0, TaskState::kOpen), std::memory_order_release);
  }
  header_->posted.store(entry.seq + 1, std::memory_order_seq_cst);
}

bool TicketRing::ready(uint64_t seq) {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    uint64_t word = task_at(seq, g).word.load(std::memory_order_seq_cst);
    if (Task::state_of(word) != TaskState::kDone || Task::seq_of(word) != seq) return false;
  }
  return true;
}

void TicketRing::clear(uint64_t seq) {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    task_at(seq, g).word.store(0, std::memory_order_release);
  }
}

void TicketRing::set_layout_state(uint64_t seq, LayoutState state, bool awaited) {
  std::atomic<uint32_t>& word = entry_at(seq).layout_state;
  word.store(layout_word(seq, state), std::memory_order_seq_cst);
  if (awaited) os::futex_wake(word, 1 << 20, static_cast<bool>(file_));
}

void TicketRing::close_layout(uint64_t seq) {
  std::atomic<uint32_t>& state = entry_at(seq).layout_state;
  uint32_t serving = layout_word(seq, LayoutState::kProposing, BatchEntry::kServer);
  uint32_t word = state.load(std::memory_order_acquire);
  for (;;) {
    if (word == serving) {
      os::futex_wait(state, word, -1, static_cast<bool>(file_));
      word = state.load(std::memory_order_acquire);
    } else if (state.compare_exchange_weak(word, layout_word(seq, LayoutState::kClosed))) {
      return;
    }
  }
}

void TicketRing::advance_head(uint64_t head) {
  header_->head.store(head, std::memory_order_seq_cst);
}

bool TicketRing::withdraw(uint64_t seq) {
  bool at_rest = true;
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    Task& task = task_at(seq, g);
    uint64_t word = task.word.load(std::memory_order_acquire);
    while (Task::state_of(word) == TaskState::kOpen && !task.word.compare_exchange_weak(word, 0)) {
    }
    TaskState state = Task::state_of(task.word.load(std::memory_order_seq_cst));
    at_rest = at_rest && (state == TaskState::kIdle || state == TaskState::kDone);
  }
  return at_rest;
}

// ---- a worker ----------------------------------------------------------------------------------

bool TicketRing::try_claim(Task& task, uint64_t word, uint32_t worker, uint64_t seq,
                           uint32_t granule, Claim& out) {
  uint64_t mine = Task::word_of(seq, worker, Task::attempt_of(word), Task::losses_of(word),
                                TaskState::kClaimed);
  places_[worker].in_hand.store(0, std::memory_order_relaxed);
  if (!task.word.compare_exchange_strong(word, mine, std::memory_order_seq_cst)) return false;
  out = {&entry_at(seq), &task, seq, granule, worker, Task::losses_of(mine), mine, lane_};
  places_[worker].tickets.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool TicketRing::claim(uint32_t worker, uint64_t& cursor, Claim& out) {
  if (closed() || worker >= active()) return false;
  uint64_t end = posted() * granules_;
  uint64_t first = head() * granules_;
  uint64_t hint = header_->hint.load(std::memory_order_relaxed);
  // The hint only saves time. Every open task from head on is found in any case, when a task was
  // reopened and before a worker sleeps.
  std::atomic<uint64_t>& looked = places_[worker].reopens[lane_];
  uint64_t reopens = header_->reopens.load(std::memory_order_seq_cst);
  bool all = reopens != looked.load(std::memory_order_relaxed) || cursor == UINT64_MAX;
  uint64_t start = all ? first : std::max({first, hint, cursor});
  for (uint64_t u = start, next; u < end; u = next) {
    const uint64_t seq = u / granules_;
    const auto granule = static_cast<uint32_t>(u % granules_);
    next = granule + 1 < granules_at(seq) ? u + 1 : (seq + 1) * granules_;
    Task& task = task_at(seq, granule);
    uint64_t word = task.word.load(std::memory_order_acquire);
    if (Task::state_of(word) != TaskState::kOpen || Task::seq_of(word) != seq) continue;
    uint32_t owner = entry_at(seq).owner.load(std::memory_order_relaxed);
    if (owner != kAnyWorker && owner != worker) continue;
    if (!try_claim(task, word, worker, seq, granule, out)) continue;
    if (owner == kAnyWorker && next > hint) {
      header_->hint.store(next, std::memory_order_relaxed);
    }
    // No open task is left before the hint.
    if (all && u >= hint) looked.store(reopens, std::memory_order_relaxed);
    cursor = owner == kAnyWorker ? 0 : next;  // a stream's tickets are claimed in their order
    return true;
  }
  if (all) looked.store(reopens, std::memory_order_relaxed);
  return false;
}

bool TicketRing::claim_of(uint32_t worker, uint64_t seq, Claim& out) {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    Task& task = task_at(seq, g);
    uint64_t word = task.word.load(std::memory_order_acquire);
    if (Task::state_of(word) == TaskState::kOpen && Task::seq_of(word) == seq &&
        try_claim(task, word, worker, seq, g, out)) {
      return true;
    }
  }
  return false;
}

bool TicketRing::begin_result(const Claim& claim) {
  uint64_t word = claim.word;
  return claim.task->word.compare_exchange_strong(word,
                                                  Task::with_state(word, TaskState::kWriting));
}

void TicketRing::finish(const Claim& claim) {
  claim.task->worker = claim.worker;
  claim.task->word.store(Task::with_state(claim.word, TaskState::kDone), std::memory_order_seq_cst);
  uint64_t wants = header_->wants.load(std::memory_order_seq_cst);
  if (wants == 0) return;
  bool awaited = wants == claim.seq + 1 || wants == kAnySeq + 1;
  if (awaited && (claim.seq < head() || ready(claim.seq))) {
    if (header_->wants.compare_exchange_strong(wants, 0)) {
      header_->consumer_event.fetch_add(1, std::memory_order_seq_cst);
      os::futex_wake(header_->consumer_event, 1, static_cast<bool>(file_));
    }
  }
}

bool TicketRing::open_for(uint32_t worker) {
  uint64_t end = header_->posted.load(std::memory_order_seq_cst) * granules_;
  for (uint64_t u = head() * granules_, next; u < end; u = next) {
    const uint64_t seq = u / granules_;
    next = u % granules_ + 1 < granules_at(seq) ? u + 1 : (seq + 1) * granules_;
    uint64_t word = task_at(seq, u % granules_).word.load(std::memory_order_seq_cst);
    if (Task::state_of(word) != TaskState::kOpen || Task::seq_of(word) != seq) continue;
    uint32_t owner = entry_at(seq).owner.load(std::memory_order_relaxed);
    if (owner == kAnyWorker || owner == worker) return true;
  }
  return false;
}

void TicketRing::wait_for_work(uint32_t worker, uint64_t& cursor, uint64_t since) {
  uint32_t seen = places_[worker].event.load(std::memory_order_acquire);
  if (worker >= active()) {
    wake_some(1);  // passes on a wake-up for work that this worker will not do now
    if (!closed()) os::futex_wait(places_[worker].event, seen, -1, static_cast<bool>(file_));
    cursor = UINT64_MAX;  // once it is active again, look at every task
    return;
  }
  uint64_t bit = uint64_t{1} << (worker % 64);
  common_->sleeping[worker / 64].fetch_or(bit, std::memory_order_seq_cst);
  // Look again, at every task: finds tickets that were posted before the bit was visible.
  bool there = closed() || open_for(worker);
  for (auto& lane : inner_) there = there || lane->open_for(worker);
  if (there && (closed() || !spare(worker))) {
    common_->sleeping[worker / 64].fetch_and(~bit);
    cursor = UINT64_MAX;  // look at every task
    return;
  }
  if (!spare(worker)) places_[worker].waiting_since.store(since, std::memory_order_relaxed);
  os::futex_wait(places_[worker].event, seen, -1, static_cast<bool>(file_));
  common_->sleeping[worker / 64].fetch_and(~bit);
}

// ---- the supervisor ----------------------------------------------------------------------------

uint64_t TicketRing::oldest() const {
  uint64_t end = posted();
  return end > entries_ ? end - entries_ : 0;
}

TicketRing::Claim TicketRing::claim_in(uint64_t seq, uint32_t granule, uint64_t word) {
  return {&entry_at(seq),
          &task_at(seq, granule),
          seq,
          granule,
          Task::worker_of(word),
          Task::losses_of(word),
          Task::with_state(word, TaskState::kClaimed),
          lane_};
}

uint32_t TicketRing::reopen(uint32_t worker, uint32_t most,
                            void (*fail_after_losses)(void*, const Claim&), void* of) {
  uint32_t count = 0;
  for (uint64_t seq = oldest(), end = posted(); seq < end; ++seq) {
    // Even if the ticket is not the worker's any more: other granules may wait for the layout.
    uint32_t proposing = layout_word(seq, LayoutState::kProposing, worker);
    std::atomic<uint32_t>& layout = entry_at(seq).layout_state;
    if (layout.compare_exchange_strong(proposing, layout_word(seq, LayoutState::kNone))) {
      os::futex_wake(layout, 1 << 20, static_cast<bool>(file_));
    }
    for (uint32_t g = 0; g < granules_; ++g) {
      Task& task = task_at(seq, g);
      uint64_t word = task.word.load(std::memory_order_acquire);
      TaskState state = Task::state_of(word);
      if ((state != TaskState::kClaimed && state != TaskState::kWriting) ||
          Task::worker_of(word) != worker || Task::seq_of(word) != seq) {
        continue;
      }
      Claim claim = claim_in(seq, g, word);
      if (seq < head()) {
        task.kind = ResultKind::kNone;
        finish(claim);
        continue;
      }
      ++count;
      if (Task::losses_of(word) + 1 >= most) {
        fail_after_losses(of, claim);
      } else {
        reopen_task(claim, Task::losses_of(word) + 1);
      }
    }
  }
  common_->sleeping[worker / 64].fetch_and(~(uint64_t{1} << (worker % 64)));
  // The worker may have died with a wake-up that it had received, or had to send.
  wake_some(1);
  nudge_consumer();
  return count;
}

void TicketRing::reopen_task(const Claim& claim, uint32_t losses) {
  claim.task->kind = ResultKind::kNone;
  claim.task->length = 0;
  claim.task->claimed_ns.store(0, std::memory_order_relaxed);
  claim.task->in_hand.store(0, std::memory_order_relaxed);
  uint32_t attempt = Task::attempt_of(claim.word) % 255 + 1;
  uint32_t owner = claim.entry->owner.load(std::memory_order_relaxed);
  claim.task->word.store(Task::word_of(claim.seq, 0, attempt, losses, TaskState::kOpen),
                         std::memory_order_seq_cst);
  // After the task is open: a worker that sees the new count finds the task open, or claimed.
  header_->reopens.fetch_add(1, std::memory_order_seq_cst);
  if (owner == kAnyWorker) {
    wake_some(1);
  } else {
    wake_one(owner);
  }
}

bool TicketRing::take_over(const Claim& claim) { return begin_result(claim); }

// ---- any thread --------------------------------------------------------------------------------

void TicketRing::close() {
  common_->closed.store(1, std::memory_order_seq_cst);
  for (uint32_t w = 0; w < workers_; ++w) {
    places_[w].event.fetch_add(1, std::memory_order_seq_cst);
    os::futex_wake(places_[w].event, 1 << 20, static_cast<bool>(file_));
  }
  for (uint32_t l = 0; l < lanes(); ++l) {
    TicketRing& of = lane(l);
    for (uint32_t p = 0; p < of.entries_; ++p) {
      os::futex_wake(of.entry_ring_[p].layout_state, 1 << 20, static_cast<bool>(file_));
    }
    of.nudge_consumer();
  }
}

bool TicketRing::closed() const { return common_->closed.load(std::memory_order_acquire) != 0; }

}  // namespace penstock
