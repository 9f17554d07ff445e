#include "penstock/workers/ring_worker.h"

#include <algorithm>

namespace penstock {

bool RingWorker::claim(TicketRing::Claim& out) {
  if (ring_.closed() || worker_ >= ring_.sleepers().active()) return false;
  for (uint32_t l = 0, end = ring_.lanes(); l < end; ++l) {
    if (claim_in(ring_.lane(l), out)) return true;
  }
  return false;
}

bool RingWorker::try_claim(TicketRing& lane, uint64_t seq, uint32_t granule, uint64_t word,
                           TicketRing::Claim& out) {
  const uint64_t mine = Task::word_of(seq, worker_, Task::attempt_of(word), Task::losses_of(word),
                                      TaskState::kClaimed);
  WorkerPlace& place = lane.place(worker_);
  place.in_hand.store(0, std::memory_order_relaxed);
  Task& task = lane.task_at(seq, granule);
  if (!task.word.compare_exchange_strong(word, mine, std::memory_order_seq_cst)) return false;
  out = lane.claim_in(seq, granule, mine);
  place.tickets.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool RingWorker::claim_in(TicketRing& lane, TicketRing::Claim& out) {
  LaneHeader& header = lane.header();
  const uint64_t granules = lane.granules();
  const uint64_t end = lane.end_of_work() * granules, first = lane.head() * granules;
  const uint64_t hint = header.hint.load(std::memory_order_relaxed);
  // The hint only saves time. Every open task from head on is found in any case, when a task was
  // reopened and before a worker sleeps.
  uint64_t& look_from = look_from_[lane.number()];
  std::atomic<uint64_t>& looked = lane.place(worker_).reopens[lane.number()];
  const uint64_t reopens = header.reopens.load(std::memory_order_seq_cst);
  const bool all = reopens != looked.load(std::memory_order_relaxed) || look_from == kLookAtAll;
  for (uint64_t u = all ? first : std::max({first, hint, look_from}), next; u < end; u = next) {
    const uint64_t seq = u / granules;
    const auto granule = static_cast<uint32_t>(u % granules);
    next = granule + 1 < lane.granules_at(seq) ? u + 1 : (seq + 1) * granules;
    const uint64_t word = lane.task_at(seq, granule).word.load(std::memory_order_acquire);
    if (Task::state_of(word) != TaskState::kOpen || Task::seq_of(word) != seq) continue;
    const uint32_t owner = lane.entry_at(seq).owner.load(std::memory_order_relaxed);
    if (owner != kAnyWorker && owner != worker_) continue;
    if (!try_claim(lane, seq, granule, word, out)) continue;
    if (owner == kAnyWorker && next > hint) header.hint.store(next, std::memory_order_relaxed);
    // No open task is left before the hint.
    if (all && u >= hint) looked.store(reopens, std::memory_order_relaxed);
    look_from = owner == kAnyWorker ? 0 : next;  // a stream's tickets are claimed in their order
    return true;
  }
  if (all) looked.store(reopens, std::memory_order_relaxed);
  return false;
}

bool RingWorker::claim_of(uint64_t seq, TicketRing::Claim& out) {
  for (uint32_t g = 0, end = ring_.granules_at(seq); g < end; ++g) {
    const uint64_t word = ring_.task_at(seq, g).word.load(std::memory_order_acquire);
    if (Task::state_of(word) == TaskState::kOpen && Task::seq_of(word) == seq &&
        try_claim(ring_, seq, g, word, out)) {
      return true;
    }
  }
  return false;
}

bool RingWorker::open_in(TicketRing& lane) const {
  const uint64_t granules = lane.granules();
  const uint64_t end = lane.end_of_work() * granules;
  for (uint64_t u = lane.head() * granules, next; u < end; u = next) {
    const uint64_t seq = u / granules;
    const auto granule = static_cast<uint32_t>(u % granules);
    next = granule + 1 < lane.granules_at(seq) ? u + 1 : (seq + 1) * granules;
    const uint64_t word = lane.task_at(seq, granule).word.load(std::memory_order_seq_cst);
    if (Task::state_of(word) != TaskState::kOpen || Task::seq_of(word) != seq) continue;
    const uint32_t owner = lane.entry_at(seq).owner.load(std::memory_order_relaxed);
    if (owner == kAnyWorker || owner == worker_) return true;
  }
  return false;
}

bool RingWorker::any_open() const {
  for (uint32_t l = 0, end = ring_.lanes(); l < end; ++l) {
    if (open_in(ring_.lane(l))) return true;
  }
  return false;
}

void RingWorker::wait(uint64_t since) {
  SleepingWorkers& sleepers = ring_.sleepers();
  const uint32_t seen = sleepers.event(worker_);
  if (worker_ >= sleepers.active()) {
    sleepers.wake_some(1);  // passes on a wake-up for work that this worker will not do now
    if (!ring_.closed()) sleepers.sleep(worker_, seen);
    look_from_.fill(kLookAtAll);  // once it is active again
    return;
  }
  sleepers.announce(worker_);
  // Look again, at every task: finds tickets that were posted before the bit was visible.
  const bool closed = ring_.closed();
  if (closed || (any_open() && !spare())) {
    sleepers.withdraw(worker_);
    look_from_.fill(kLookAtAll);
    return;
  }
  if (!spare()) ring_.place(worker_).waiting_since.store(since, std::memory_order_relaxed);
  sleepers.sleep(worker_, seen);
  sleepers.withdraw(worker_);
}

// The first awake worker does the work. It sleeps only after it has set its sleeping bit and sees
// no work; the next post wakes a worker then.
bool RingWorker::spare() const {
  const SleepingWorkers& sleepers = ring_.sleepers();
  if (!sleepers.one_suffices() || ring_.lanes() > 1) return false;
  if (ring_.entry_at(ring_.head()).owner.load(std::memory_order_relaxed) != kAnyWorker) {
    return false;
  }
  for (uint32_t w = 0, end = std::min(worker_, sleepers.active()); w < end; ++w) {
    if (sleepers.awake(w)) return true;
  }
  return false;
}

}  // namespace penstock
