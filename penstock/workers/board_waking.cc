// The board: who sleeps for what, who wakes whom, and which workers are parked.
#include <algorithm>

#include "penstock/base/clock.h"
#include "penstock/workers/board.h"
#include "penstock/workers/board_header.h"

namespace penstock {

namespace {
constexpr int64_t kPatienceNs = 1'000'000;  // that the consumer waits before it wakes all workers
constexpr uint64_t kTogetherNs = 50'000;    // that it may wait for more than the next batch
}  // namespace

// True: the time was over.
template <class There>
bool Board::sleep_until(uint64_t wants, int64_t timeout_ns, There there) {
  uint32_t seen = header_->consumer_event.load(std::memory_order_acquire);
  header_->wants.store(wants, std::memory_order_seq_cst);
  auto woken = os::Woken::kWoken;
  if (!closed() && !there()) {
    woken = os::futex_wait(header_->consumer_event, seen, timeout_ns, static_cast<bool>(file_));
  }
  header_->wants.store(0, std::memory_order_relaxed);
  return woken == os::Woken::kTimeout;
}

// A consumer that takes a batch in no time and waits again has to be woken for each, and where
// cores are short that stops a worker, too. If workers make several within kTogetherNs, it sleeps
// until that many are there. How many after the next one; 0 for a consumer that uses its batches.
uint64_t Board::worth_waiting_for(uint64_t seq) const {
  const uint64_t each = typical_ticket_ns();
  if (each == 0 || posted() <= seq || now_ns() - waited_until_ns_ > kTogetherNs) return 0;
  const uint64_t made = kTogetherNs * (one_does() ? 1 : active()) / (each * granules_at(seq));
  return std::min(made, (posted() - seq) / 4);
}

void Board::consumer_wait(uint64_t seq, int64_t timeout_ns, const std::function<bool()>& also) {
  look_at_lock();
  wake_workers(true);
  auto there = [&] {
    if (also && also()) return true;
    if (also && head() == posted()) return false;  // that the ring has room is no news
    return seq == kAnySeq ? progress() : ready(seq);
  };
  if (const uint64_t more = also || seq == kAnySeq ? 0 : worth_waiting_for(seq); more > 0) {
    // What comes before may be late all the same, or nobody may be left to make the last of them.
    auto all_there = [&] { return ready(seq + more); };
    int64_t while_ns = int64_t{2} * kTogetherNs;
    if (timeout_ns >= 0) while_ns = std::min(while_ns, timeout_ns);
    sleep_until(seq + more + 1, while_ns, all_there);
    waited_until_ns_ = now_ns();
    if (closed() || there()) return;
  }
  if (one_does()) {
    // The one may have met a ticket that takes longer: then the others are needed.
    int64_t while_ns = timeout_ns < 0 ? kPatienceNs : std::min(timeout_ns, kPatienceNs);
    const uint64_t begun = now_ns();
    sleep_until(seq + 1, while_ns, there);
    waited_until_ns_ = now_ns();
    if (closed() || there() || timeout_ns == while_ns) return;
    if (waited_until_ns_ - begun >= kPatienceNs) {
      lock_trial_.in_vain(waited_until_ns_);
      all_hands_.store(true, std::memory_order_seq_cst);
      wake_some(workers_);
    }
  }
  // Nobody should need it, but a wake-up may have been meant for a worker that was killed.
  if (sleep_until(seq + 1, timeout_ns, there)) wake_some(workers_);
  waited_until_ns_ = now_ns();
}

void Board::consumer_wait_at_rest(uint64_t seq, int64_t timeout_ns) {
  if (sleep_until(kAnySeq + 1, timeout_ns, [&] { return withdraw(seq); })) wake_some(workers_);
}

bool Board::progress() {
  uint64_t first = head(), end = posted();
  for (uint64_t seq = first; seq < end; ++seq) {
    // A later epoch's batches are not taken before this one's.
    if (post_at(seq).epoch != post_at(first).epoch) break;
    if (ready(seq)) return true;
  }
  // Nothing is in flight because the next place in the ring is still taken by withdrawn work.
  if (first != end) return false;
  for (uint32_t g = 0, last = granules_at(end); g < last; ++g) {
    UnitState state = Unit::state_of(unit_at(end, g).word.load(std::memory_order_seq_cst));
    if (state != UnitState::kIdle && state != UnitState::kDone) return false;
  }
  return true;
}

void Board::nudge_consumer() {
  header_->wants.store(0, std::memory_order_relaxed);
  header_->consumer_event.fetch_add(1, std::memory_order_seq_cst);
  os::futex_wake(header_->consumer_event, 1 << 20, static_cast<bool>(file_));
}

uint64_t Board::typical_ticket_ns() const {
  uint64_t least = UINT64_MAX;
  for (uint32_t w = 0; w < workers_; ++w) {
    uint64_t ns = places_[w].ticket_ns.load(std::memory_order_relaxed);
    if (ns != 0) least = std::min(least, ns);
  }
  return least;
}

// From the hint on: those of the post that it is in, and of all others as many as the newest has.
uint64_t Board::open_units(uint64_t posted, uint64_t hint) const {
  const uint64_t seq = hint / granules_, within = hint % granules_;
  if (posted <= seq) return 0;
  const uint64_t here = granules_at(seq);
  return (here > within ? here - within : 0) + (posted - seq - 1) * granules_at(posted - 1);
}

void Board::wake_workers(bool consumer_waits) {
  bool any = false;
  for (auto& mask : common_->sleeping) any = any || mask.load(std::memory_order_seq_cst) != 0;
  if (!any) return;
  uint64_t posted = header_->posted.load(std::memory_order_relaxed);
  // An owned post has one worker that may do it.
  for (uint64_t seq = header_->head.load(std::memory_order_relaxed); seq < posted; ++seq) {
    Post& post = post_at(seq);
    if (post.owner == kAnyWorker) break;
    uint64_t word = unit_at(seq, 0).word.load(std::memory_order_relaxed);
    if (Unit::state_of(word) == UnitState::kOpen) wake_one(post.owner);
  }
  uint64_t hint = header_->hint.load(std::memory_order_relaxed);
  uint64_t open = open_units(posted, hint);
  if (open == 0) return;  // what is opened again wakes somebody by itself
  uint64_t each = typical_ticket_ns();
  if (!consumer_waits) {
    // Waking costs some 40 us: worth it for that much work, or for a quarter of the ring.
    uint64_t worth = 40'000 / std::max<uint64_t>(each, 1);
    if (open < std::min<uint64_t>(worth, posts_ * granules_ / 4)) return;
  }
  if (one_does()) {
    for (uint32_t w = 0, end = active(); w < end; ++w) {
      if (awake(w)) return;  // it does this, too
    }
    open = 1;
  }
  wake_some(exclusive_.load(std::memory_order_relaxed) && each < kQuickNs ? 1 : open);
}

bool Board::one_does() const {
  return exclusive_.load(std::memory_order_relaxed) && !all_hands_.load(std::memory_order_seq_cst);
}

// The one is the first that is awake: it sleeps only when it has set its bit and sees no work, and
// then whoever posts wakes one.
bool Board::spare(uint32_t worker) const {
  if (!one_does() || !inner_.empty()) return false;
  if (post_ring_[head() & (posts_ - 1)].owner.load(std::memory_order_relaxed) != kAnyWorker) {
    return false;
  }
  for (uint32_t w = 0, end = std::min(worker, active()); w < end; ++w) {
    if (awake(w)) return true;
  }
  return false;
}

bool Board::awake(uint32_t worker) const {
  return places_[worker].serving.load(std::memory_order_relaxed) != 0 && !asleep(worker);
}

void Board::look_at_lock() {
  if (!exclusive_.load(std::memory_order_relaxed) || lane_ != 0 || !inner_.empty()) return;
  uint64_t each = typical_ticket_ns();
  if (one_does()) {
    // Of the one, for the others' figures are old.
    for (uint32_t w = 0, end = active(); w < end; ++w) {
      if (!awake(w)) continue;
      each = places_[w].ticket_ns.load(std::memory_order_relaxed);
      break;
    }
  }
  const bool all = lock_trial_.all(now_ns(), head(), each < kQuickNs);
  if (all == all_hands_.load(std::memory_order_relaxed)) return;
  all_hands_.store(all, std::memory_order_seq_cst);
  if (all) wake_some(workers_);
}

bool Board::asleep(uint32_t worker) const {
  uint64_t mask = common_->sleeping[worker / 64].load(std::memory_order_seq_cst);
  return (mask >> (worker % 64) & 1) != 0;
}

bool Board::wake_one(uint32_t worker) {
  uint64_t bit = uint64_t{1} << (worker % 64);
  if ((common_->sleeping[worker / 64].load(std::memory_order_seq_cst) & bit) == 0) return false;
  if ((common_->sleeping[worker / 64].fetch_and(~bit) & bit) == 0) return false;
  places_[worker].event.fetch_add(1, std::memory_order_seq_cst);
  os::futex_wake(places_[worker].event, 1, static_cast<bool>(file_));
  return true;
}

void Board::wake_some(uint64_t count) {
  const uint32_t awake = active();
  uint32_t first = wake_first_.load(std::memory_order_relaxed);
  if (first >= awake) first = 0;
  for (uint32_t i = 0; i < awake && count > 0; ++i) {
    uint32_t worker = first + i < awake ? first + i : first + i - awake;
    if (wake_one(worker)) --count;
  }
}

uint32_t Board::active() const { return common_->active.load(std::memory_order_seq_cst); }

void Board::set_active(uint32_t count) {
  count = std::clamp(count, 1u, workers_);
  // First the number, then the event: who saw the old number has the old event in hand, too.
  const uint32_t before = common_->active.exchange(count, std::memory_order_seq_cst);
  // Those that are parked from now on wake, too: up to here they waited for tickets.
  for (uint32_t w = std::min(before, count), end = std::max(before, count); w < end; ++w) {
    places_[w].event.fetch_add(1, std::memory_order_seq_cst);
    os::futex_wake(places_[w].event, 1, static_cast<bool>(file_));
  }
}

}  // namespace penstock
