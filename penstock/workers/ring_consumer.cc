#include "penstock/workers/ring_consumer.h"

#include <algorithm>

#include "penstock/base/clock.h"

namespace penstock {

namespace {
// after a wait of this length the consumer wakes all workers
constexpr int64_t kWakeAllNs = 1'000'000;
constexpr int64_t kServingNs = 20'000'000;  // until a server is looked for again
constexpr uint64_t kTogetherNs = 50'000;  // the longest that the consumer waits for further batches
}  // namespace

// ---- entries -----------------------------------------------------------------------------------

bool RingConsumer::can_post() const {
  const uint64_t seq = ring_.posted();
  if (seq - ring_.head() >= ring_.entries()) return false;
  return ring_.idle(seq);
}

BatchEntry& RingConsumer::next_entry() {
  const uint64_t seq = ring_.posted();
  BatchEntry& entry = ring_.entry_at(seq);
  entry.seq = seq;
  entry.layout_length = 0;
  entry.block_offset = entry.block_bytes = entry.needed_bytes = 0;
  entry.layout_state.store(ring_.layout_word(seq, LayoutState::kNone), std::memory_order_relaxed);
  entry.tainted.store(0, std::memory_order_relaxed);
  return entry;
}

// Tasks past the entry's last granule stay idle.
void RingConsumer::publish(BatchEntry& entry) {
  const uint64_t seq = ring_.posted();
  PostedEntry& own = ring_.posted_at(seq);
  own.epoch = entry.epoch;
  own.base = entry.base;
  own.step = entry.step;
  own.version = entry.version;
  own.input_offset = entry.input_offset;
  own.rows = entry.rows;
  own.owner = entry.owner.load(std::memory_order_relaxed);
  own.stream = entry.stream;
  own.rows_together = entry.rows_together;
  own.granules.store(entry.granules.load(std::memory_order_relaxed), std::memory_order_relaxed);
  for (uint32_t g = 0, end = ring_.granules_at(seq); g < end; ++g) {
    Task& task = ring_.task_at(seq, g);
    task.poisoned.store(0, std::memory_order_relaxed);
    task.claimed_ns.store(0, std::memory_order_relaxed);
    task.in_hand.store(0, std::memory_order_relaxed);
    task.kind = ResultKind::kNone;
    task.length = 0;
    task.bytes = 0;
    task.object = 0;
    task.word.store(Task::word_of(seq, 0, 0, 0, TaskState::kOpen), std::memory_order_release);
  }
  ring_.set_posted(seq + 1);
}

BatchEntry& RingConsumer::own_entry(uint64_t seq) {
  BatchEntry& entry = ring_.entry_at(seq);
  const PostedEntry& own = ring_.posted_at(seq);
  // An abandoned thread may still read the entry, so a word that is right is not written.
  const auto restore = [](auto& word, const auto& right) {
    if (word != right) word = right;
  };
  restore(entry.seq, seq);
  restore(entry.epoch, own.epoch);
  restore(entry.base, own.base);
  restore(entry.step, own.step);
  restore(entry.version, own.version);
  restore(entry.input_offset, own.input_offset);
  restore(entry.rows, own.rows);
  restore(entry.owner, own.owner);
  restore(entry.stream, own.stream);
  restore(entry.rows_together, own.rows_together);
  restore(entry.granules, own.granules.load(std::memory_order_relaxed));
  if (entry.layout_length > kLayoutBytes) entry.layout_length = kLayoutBytes;
  return entry;
}

void RingConsumer::clear(uint64_t seq) {
  for (uint32_t g = 0, end = ring_.granules_at(seq); g < end; ++g) {
    ring_.task_at(seq, g).word.store(0, std::memory_order_release);
  }
}

void RingConsumer::advance_head(uint64_t head) { ring_.set_head(head); }

void RingConsumer::close_layout(uint64_t seq) {
  std::atomic<uint32_t>& state = ring_.entry_at(seq).layout_state;
  const uint32_t serving = ring_.layout_word(seq, LayoutState::kProposing, BatchEntry::kServer);
  uint32_t word = state.load(std::memory_order_acquire);
  for (;;) {
    if (word == serving && ring_.posted_at(seq).serving.load() != 0) {
      os::futex_wait(state, word, kServingNs, ring_.shared());
      word = state.load(std::memory_order_acquire);
    } else if (state.compare_exchange_weak(word, ring_.layout_word(seq, LayoutState::kClosed))) {
      return;
    }
  }
}

bool RingConsumer::withdraw(uint64_t seq) {
  bool at_rest = true;
  for (uint32_t g = 0, end = ring_.granules_at(seq); g < end; ++g) {
    Task& task = ring_.task_at(seq, g);
    uint64_t word = task.word.load(std::memory_order_acquire);
    while (Task::state_of(word) == TaskState::kOpen && !task.word.compare_exchange_weak(word, 0)) {
    }
    const TaskState state = Task::state_of(task.word.load(std::memory_order_seq_cst));
    at_rest = at_rest && (state == TaskState::kIdle || state == TaskState::kDone);
  }
  return at_rest;
}

// ---- waiting -----------------------------------------------------------------------------------

// Returns true if the timeout has passed.
template <class There>
bool RingConsumer::sleep_until(uint64_t wants, int64_t timeout_ns, There there) {
  LaneHeader& header = ring_.header();
  const uint32_t seen = header.consumer_event.load(std::memory_order_acquire);
  header.wants.store(wants, std::memory_order_seq_cst);
  auto woken = os::Woken::kWoken;
  if (!ring_.closed() && !there()) {
    woken = os::futex_wait(header.consumer_event, seen, timeout_ns, ring_.shared());
  }
  header.wants.store(0, std::memory_order_relaxed);
  return woken == os::Woken::kTimeout;
}

// A ticket's time in the worker that was quickest lately; UINT64_MAX: not known yet.
uint64_t RingConsumer::typical_ticket_ns() const {
  uint64_t least = UINT64_MAX;
  for (uint32_t w = 0; w < ring_.workers(); ++w) {
    const uint64_t ns = ring_.place(w).ticket_ns.load(std::memory_order_relaxed);
    if (ns != 0) least = std::min(least, ns);
  }
  return least;
}

// A consumer that uses no time between batches would be woken for each of them, and on a machine
// with few cores each wake-up also stops a worker. If workers make several batches within
// kTogetherNs, the consumer sleeps until all of these are ready. Returns how many batches besides
// the next one to wait for; 0 for a consumer that spends time on its batches.
uint64_t RingConsumer::batches_to_wait_for(uint64_t seq) const {
  const uint64_t each = typical_ticket_ns(), posted = ring_.posted();
  if (each == 0 || posted <= seq || now_ns() - waited_until_ns_ > kTogetherNs) return 0;
  const SleepingWorkers& sleepers = ring_.sleepers();
  const uint64_t made = kTogetherNs * (sleepers.one_suffices() ? 1 : sleepers.active()) / each /
                        std::max(ring_.granules_at(seq), 1u);
  return std::min(made, (posted - seq) / 4);
}

void RingConsumer::wait(uint64_t seq, int64_t timeout_ns, const std::function<bool()>& also) {
  look_at_lock();
  wake_workers(true);
  SleepingWorkers& sleepers = ring_.sleepers();
  auto there = [&] {
    if (also && also()) return true;
    if (also && ring_.head() == ring_.posted()) return false;  // the ring had space before, too
    return seq == TicketRing::kAnySeq ? progress() : ring_.ready(seq);
  };
  const bool several = !also && seq != TicketRing::kAnySeq;
  if (const uint64_t more = several ? batches_to_wait_for(seq) : 0; more > 0) {
    // An earlier batch may be late, or no worker may be left to make the last of them.
    auto all_there = [&] { return ring_.ready(seq + more); };
    int64_t while_ns = int64_t{2} * kTogetherNs;
    if (timeout_ns >= 0) while_ns = std::min(while_ns, timeout_ns);
    sleep_until(seq + more + 1, while_ns, all_there);
    waited_until_ns_ = now_ns();
    if (ring_.closed() || there()) return;
  }
  if (sleepers.one_suffices()) {
    // The one active worker may be in a longer ticket: then the others are needed.
    const int64_t while_ns = timeout_ns < 0 ? kWakeAllNs : std::min(timeout_ns, kWakeAllNs);
    const uint64_t begun = now_ns();
    sleep_until(seq + 1, while_ns, there);
    waited_until_ns_ = now_ns();
    if (ring_.closed() || there() || timeout_ns == while_ns) return;
    if (waited_until_ns_ - begun >= kWakeAllNs) {
      lock_trial_.waited_too_long(waited_until_ns_);
      sleepers.set_all_work(true);
      sleepers.wake_all();
    }
  }
  // Only needed if the wake-up was sent to a worker that was killed.
  if (sleep_until(seq + 1, timeout_ns, there)) sleepers.wake_all();
  waited_until_ns_ = now_ns();
}

void RingConsumer::wait_at_rest(uint64_t seq, int64_t timeout_ns) {
  if (sleep_until(TicketRing::kAnySeq + 1, timeout_ns, [&] { return withdraw(seq); })) {
    ring_.sleepers().wake_all();
  }
}

bool RingConsumer::progress() const {
  const uint64_t first = ring_.head(), end = ring_.posted();
  for (uint64_t seq = first; seq < end; ++seq) {
    // Batches of a later epoch are taken only after all of this one.
    if (ring_.posted_at(seq).epoch != ring_.posted_at(first).epoch) break;
    if (ring_.ready(seq)) return true;
  }
  // Nothing is in flight, because withdrawn work still occupies the next place in the ring.
  if (first != end) return false;
  for (uint32_t g = 0, last = ring_.granules_at(end); g < last; ++g) {
    const uint64_t word = ring_.task_at(end, g).word.load(std::memory_order_seq_cst);
    const TaskState state = Task::state_of(word);
    if (state != TaskState::kIdle && state != TaskState::kDone) return false;
  }
  return true;
}

// ---- waking workers ----------------------------------------------------------------------------

// An estimate from the hint on: the rest of the hint's entry, and for each later entry as many
// tasks as the newest one has.
uint64_t RingConsumer::open_tasks(uint64_t posted, uint64_t hint) const {
  const uint64_t seq = hint / ring_.granules(), within = hint % ring_.granules();
  if (posted <= seq) return 0;
  const uint64_t here = ring_.granules_at(seq);
  return (here > within ? here - within : 0) + (posted - seq - 1) * ring_.granules_at(posted - 1);
}

void RingConsumer::wake_workers(bool consumer_waits) {
  SleepingWorkers& sleepers = ring_.sleepers();
  if (!sleepers.any_asleep()) return;
  const LaneHeader& header = ring_.header();
  const uint64_t posted = ring_.posted();
  // Only its owner may claim an owned entry.
  for (uint64_t seq = ring_.head(); seq < posted; ++seq) {
    const uint32_t owner = ring_.posted_at(seq).owner;
    if (owner == kAnyWorker) break;
    const uint64_t word = ring_.task_at(seq, 0).word.load(std::memory_order_relaxed);
    if (Task::state_of(word) == TaskState::kOpen) sleepers.wake(owner);
  }
  uint64_t open = open_tasks(posted, header.hint.load(std::memory_order_relaxed));
  if (open == 0) return;  // reopening wakes a worker by itself
  const uint64_t each = typical_ticket_ns();
  if (!consumer_waits) {
    // A wake-up costs about 40 us. It pays for as much work, or for a quarter of the ring.
    const uint64_t worth = 40'000 / std::max<uint64_t>(each, 1);
    const uint64_t quarter = uint64_t{ring_.entries()} * ring_.granules() / 4;
    if (open < std::min(worth, quarter)) return;
  }
  if (sleepers.one_suffices()) {
    for (uint32_t w = 0, end = sleepers.active(); w < end; ++w) {
      if (sleepers.awake(w)) return;  // that worker takes these tickets, too
    }
    open = 1;
  }
  sleepers.wake_some(sleepers.exclusive() && each < kQuickNs ? 1 : open);
}

void RingConsumer::look_at_lock() {
  SleepingWorkers& sleepers = ring_.sleepers();
  if (!sleepers.exclusive() || ring_.number() != 0 || ring_.lanes() > 1) return;
  uint64_t each = typical_ticket_ns();
  if (sleepers.one_suffices()) {
    // The active worker's time; the others' figures are old.
    for (uint32_t w = 0, end = sleepers.active(); w < end; ++w) {
      if (!sleepers.awake(w)) continue;
      each = ring_.place(w).ticket_ns.load(std::memory_order_relaxed);
      break;
    }
  }
  const bool all = lock_trial_.all(now_ns(), ring_.head(), each < kQuickNs);
  if (all == sleepers.all_work()) return;
  sleepers.set_all_work(all);
  if (all) sleepers.wake_all();
}

}  // namespace penstock
