// TicketRing: sleeping and waking of the consumer and the workers; parked workers.
#include <algorithm>

#include "penstock/base/clock.h"
#include "penstock/workers/ticket_ring.h"
#include "penstock/workers/ticket_ring_header.h"

namespace penstock {

namespace {
// after a wait of this length the consumer wakes all workers
constexpr int64_t kWakeAllNs = 1'000'000;
constexpr uint64_t kTogetherNs = 50'000;  // the longest that the consumer waits for further batches
}  // namespace

// Returns true if the timeout has passed.
template <class There>
bool TicketRing::sleep_until(uint64_t wants, int64_t timeout_ns, There there) {
  uint32_t seen = header_->consumer_event.load(std::memory_order_acquire);
  header_->wants.store(wants, std::memory_order_seq_cst);
  auto woken = os::Woken::kWoken;
  if (!closed() && !there()) {
    woken = os::futex_wait(header_->consumer_event, seen, timeout_ns, static_cast<bool>(file_));
  }
  header_->wants.store(0, std::memory_order_relaxed);
  return woken == os::Woken::kTimeout;
}

// A consumer that uses no time between batches would be woken for each of them, and on a machine
// with few cores each wake-up also stops a worker. If workers make several batches within
// kTogetherNs, the consumer sleeps until all of these are ready. Returns how many batches besides
// the next one to wait for; 0 for a consumer that spends time on its batches.
uint64_t TicketRing::batches_to_wait_for(uint64_t seq) const {
  const uint64_t each = typical_ticket_ns();
  if (each == 0 || posted() <= seq || now_ns() - waited_until_ns_ > kTogetherNs) return 0;
  const uint64_t made =
      kTogetherNs * (one_worker_suffices() ? 1 : active()) / (each * granules_at(seq));
  return std::min(made, (posted() - seq) / 4);
}

void TicketRing::consumer_wait(uint64_t seq, int64_t timeout_ns,
                               const std::function<bool()>& also) {
  look_at_lock();
  wake_workers(true);
  auto there = [&] {
    if (also && also()) return true;
    if (also && head() == posted()) return false;  // the ring had space before, too
    return seq == kAnySeq ? progress() : ready(seq);
  };
  if (const uint64_t more = also || seq == kAnySeq ? 0 : batches_to_wait_for(seq); more > 0) {
    // An earlier batch may be late, or no worker may be left to make the last of them.
    auto all_there = [&] { return ready(seq + more); };
    int64_t while_ns = int64_t{2} * kTogetherNs;
    if (timeout_ns >= 0) while_ns = std::min(while_ns, timeout_ns);
    sleep_until(seq + more + 1, while_ns, all_there);
    waited_until_ns_ = now_ns();
    if (closed() || there()) return;
  }
  if (one_worker_suffices()) {
    // The one active worker may be in a longer ticket: then the others are needed.
    int64_t while_ns = timeout_ns < 0 ? kWakeAllNs : std::min(timeout_ns, kWakeAllNs);
    const uint64_t begun = now_ns();
    sleep_until(seq + 1, while_ns, there);
    waited_until_ns_ = now_ns();
    if (closed() || there() || timeout_ns == while_ns) return;
    if (waited_until_ns_ - begun >= kWakeAllNs) {
      lock_trial_.waited_too_long(waited_until_ns_);
      all_work_.store(true, std::memory_order_seq_cst);
      wake_some(workers_);
    }
  }
  // Only needed if the wake-up was sent to a worker that was killed.
  if (sleep_until(seq + 1, timeout_ns, there)) wake_some(workers_);
  waited_until_ns_ = now_ns();
}

void TicketRing::consumer_wait_at_rest(uint64_t seq, int64_t timeout_ns) {
  if (sleep_until(kAnySeq + 1, timeout_ns, [&] { return withdraw(seq); })) wake_some(workers_);
}

bool TicketRing::progress() {
  uint64_t first = head(), end = posted();
  for (uint64_t seq = first; seq < end; ++seq) {
    // Batches of a later epoch are taken only after all of this one.
    if (entry_at(seq).epoch != entry_at(first).epoch) break;
    if (ready(seq)) return true;
  }
  // Nothing is in flight, because withdrawn work still occupies the next place in the ring.
  if (first != end) return false;
  for (uint32_t g = 0, last = granules_at(end); g < last; ++g) {
    TaskState state = Task::state_of(task_at(end, g).word.load(std::memory_order_seq_cst));
    if (state != TaskState::kIdle && state != TaskState::kDone) return false;
  }
  return true;
}

void TicketRing::nudge_consumer() {
  header_->wants.store(0, std::memory_order_relaxed);
  header_->consumer_event.fetch_add(1, std::memory_order_seq_cst);
  os::futex_wake(header_->consumer_event, 1 << 20, static_cast<bool>(file_));
}

uint64_t TicketRing::typical_ticket_ns() const {
  uint64_t least = UINT64_MAX;
  for (uint32_t w = 0; w < workers_; ++w) {
    uint64_t ns = places_[w].ticket_ns.load(std::memory_order_relaxed);
    if (ns != 0) least = std::min(least, ns);
  }
  return least;
}

// An estimate from the hint on: the rest of the hint's entry, and for each later entry as many
// tasks as the newest one has.
uint64_t TicketRing::open_tasks(uint64_t posted, uint64_t hint) const {
  const uint64_t seq = hint / granules_, within = hint % granules_;
  if (posted <= seq) return 0;
  const uint64_t here = granules_at(seq);
  return (here > within ? here - within : 0) + (posted - seq - 1) * granules_at(posted - 1);
}

void TicketRing::wake_workers(bool consumer_waits) {
  bool any = false;
  for (auto& mask : common_->sleeping) any = any || mask.load(std::memory_order_seq_cst) != 0;
  if (!any) return;
  uint64_t posted = header_->posted.load(std::memory_order_relaxed);
  // Only its owner may claim an owned entry.
  for (uint64_t seq = header_->head.load(std::memory_order_relaxed); seq < posted; ++seq) {
    BatchEntry& entry = entry_at(seq);
    if (entry.owner == kAnyWorker) break;
    uint64_t word = task_at(seq, 0).word.load(std::memory_order_relaxed);
    if (Task::state_of(word) == TaskState::kOpen) wake_one(entry.owner);
  }
  uint64_t hint = header_->hint.load(std::memory_order_relaxed);
  uint64_t open = open_tasks(posted, hint);
  if (open == 0) return;  // reopening wakes a worker by itself
  uint64_t each = typical_ticket_ns();
  if (!consumer_waits) {
    // A wake-up costs about 40 us. It pays for as much work, or for a quarter of the ring.
    uint64_t worth = 40'000 / std::max<uint64_t>(each, 1);
    if (open < std::min<uint64_t>(worth, entries_ * granules_ / 4)) return;
  }
  if (one_worker_suffices()) {
    for (uint32_t w = 0, end = active(); w < end; ++w) {
      if (awake(w)) return;  // that worker takes these tickets, too
    }
    open = 1;
  }
  wake_some(exclusive_.load(std::memory_order_relaxed) && each < kQuickNs ? 1 : open);
}

bool TicketRing::one_worker_suffices() const {
  return exclusive_.load(std::memory_order_relaxed) && !all_work_.load(std::memory_order_seq_cst);
}

// The first awake worker does the work. It sleeps only after it has set its sleeping bit and sees
// no work; the next post wakes a worker then.
bool TicketRing::spare(uint32_t worker) const {
  if (!one_worker_suffices() || !inner_.empty()) return false;
  if (entry_ring_[head() & (entries_ - 1)].owner.load(std::memory_order_relaxed) != kAnyWorker) {
    return false;
  }
  for (uint32_t w = 0, end = std::min(worker, active()); w < end; ++w) {
    if (awake(w)) return true;
  }
  return false;
}

bool TicketRing::awake(uint32_t worker) const {
  return places_[worker].serving.load(std::memory_order_relaxed) != 0 && !asleep(worker);
}

void TicketRing::look_at_lock() {
  if (!exclusive_.load(std::memory_order_relaxed) || lane_ != 0 || !inner_.empty()) return;
  uint64_t each = typical_ticket_ns();
  if (one_worker_suffices()) {
    // The active worker's time; the others' figures are old.
    for (uint32_t w = 0, end = active(); w < end; ++w) {
      if (!awake(w)) continue;
      each = places_[w].ticket_ns.load(std::memory_order_relaxed);
      break;
    }
  }
  const bool all = lock_trial_.all(now_ns(), head(), each < kQuickNs);
  if (all == all_work_.load(std::memory_order_relaxed)) return;
  all_work_.store(all, std::memory_order_seq_cst);
  if (all) wake_some(workers_);
}

bool TicketRing::asleep(uint32_t worker) const {
  uint64_t mask = common_->sleeping[worker / 64].load(std::memory_order_seq_cst);
  return (mask >> (worker % 64) & 1) != 0;
}

bool TicketRing::wake_one(uint32_t worker) {
  uint64_t bit = uint64_t{1} << (worker % 64);
  if ((common_->sleeping[worker / 64].load(std::memory_order_seq_cst) & bit) == 0) return false;
  if ((common_->sleeping[worker / 64].fetch_and(~bit) & bit) == 0) return false;
  places_[worker].event.fetch_add(1, std::memory_order_seq_cst);
  os::futex_wake(places_[worker].event, 1, static_cast<bool>(file_));
  return true;
}

void TicketRing::wake_some(uint64_t count) {
  const uint32_t awake = active();
  uint32_t first = wake_first_.load(std::memory_order_relaxed);
  if (first >= awake) first = 0;
  for (uint32_t i = 0; i < awake && count > 0; ++i) {
    uint32_t worker = first + i < awake ? first + i : first + i - awake;
    if (wake_one(worker)) --count;
  }
}

uint32_t TicketRing::active() const { return common_->active.load(std::memory_order_seq_cst); }

void TicketRing::set_active(uint32_t count) {
  count = std::clamp(count, 1u, workers_);
  // First the number, then the event: a worker that read the old number waits on the old event.
  const uint32_t before = common_->active.exchange(count, std::memory_order_seq_cst);
  // Newly parked workers wake, too, so that their wait for tickets is counted up to now.
  for (uint32_t w = std::min(before, count), end = std::max(before, count); w < end; ++w) {
    places_[w].event.fetch_add(1, std::memory_order_seq_cst);
    os::futex_wake(places_[w].event, 1, static_cast<bool>(file_));
  }
}

}  // namespace penstock
