#include "penstock/workers/board.h"

#include <algorithm>

#include "penstock/workers/board_header.h"

namespace penstock {

namespace {
constexpr int64_t kPatienceNs = 1'000'000;  // that the consumer waits before it wakes all workers
}  // namespace

Ledger Board::ledger(uint32_t worker) {
  return {&places_[0].memory, sizeof(WorkerPlace), workers_, worker, &header_->most_live};
}
ConsumerCounters& Board::consumer() { return header_->consumer; }
TraceRing& Board::consumer_trace() { return header_->consumer_trace; }
uint64_t Board::head() const { return header_->head.load(std::memory_order_acquire); }
uint64_t Board::posted() const { return header_->posted.load(std::memory_order_acquire); }

// ---- the consumer ------------------------------------------------------------------------------

bool Board::idle(uint64_t seq) {
  for (uint32_t g = 0; g < granules_; ++g) {
    uint64_t word = unit_at(seq, g).word.load(std::memory_order_acquire);
    if (state_of(word) != UnitState::kIdle) return false;
  }
  return true;
}

bool Board::can_post() const {
  uint64_t seq = header_->posted.load(std::memory_order_relaxed);
  if (seq - header_->head.load(std::memory_order_relaxed) >= posts_) return false;
  return const_cast<Board*>(this)->idle(seq);
}

Post& Board::next_post() {
  uint64_t seq = header_->posted.load(std::memory_order_relaxed);
  Post& post = post_at(seq);
  post.seq = seq;
  post.layout_length = 0;
  post.slot_offset = post.slot_bytes = post.needed_bytes = 0;
  post.layout_state.store(layout_word(seq, LayoutState::kNone), std::memory_order_relaxed);
  post.tainted.store(0, std::memory_order_relaxed);
  return post;
}

void Board::publish(Post& post) {
  for (uint32_t g = 0; g < granules_; ++g) {
    Unit& unit = unit_at(post.seq, g);
    unit.poison.store(0, std::memory_order_relaxed);
    unit.claimed_ns.store(0, std::memory_order_relaxed);
    unit.progress.store(0, std::memory_order_relaxed);
    unit.kind = ResultKind::kNone;
    unit.length = 0;
    unit.bytes = 0;
    unit.object = 0;
    // A short batch has fewer granules than the ring provides for: the rest is done already.
    UnitState state = g < post.granules ? UnitState::kOpen : UnitState::kDone;
    unit.word.store(word_of(post.seq, 0, 0, 0, state), std::memory_order_release);
  }
  header_->posted.store(post.seq + 1, std::memory_order_seq_cst);
}

bool Board::ready(uint64_t seq) {
  for (uint32_t g = 0; g < granules_; ++g) {
    uint64_t word = unit_at(seq, g).word.load(std::memory_order_seq_cst);
    if (state_of(word) != UnitState::kDone || seq_of(word) != seq) return false;
  }
  return true;
}

void Board::clear(uint64_t seq) {
  for (uint32_t g = 0; g < granules_; ++g) {
    unit_at(seq, g).word.store(0, std::memory_order_release);
  }
}

void Board::close_layout(uint64_t seq) {
  std::atomic<uint32_t>& state = post_at(seq).layout_state;
  uint32_t serving = layout_word(seq, LayoutState::kProposing, kServer);
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

void Board::advance_head(uint64_t head) { header_->head.store(head, std::memory_order_seq_cst); }

bool Board::withdraw(uint64_t seq) {
  bool at_rest = true;
  for (uint32_t g = 0; g < granules_; ++g) {
    Unit& unit = unit_at(seq, g);
    uint64_t word = unit.word.load(std::memory_order_acquire);
    while (state_of(word) == UnitState::kOpen && !unit.word.compare_exchange_weak(word, 0)) {
    }
    UnitState state = state_of(unit.word.load(std::memory_order_seq_cst));
    at_rest = at_rest && (state == UnitState::kIdle || state == UnitState::kDone);
  }
  return at_rest;
}

template <class There>
void Board::sleep_until(uint64_t wants, int64_t timeout_ns, There there) {
  uint32_t seen = header_->consumer_event.load(std::memory_order_acquire);
  header_->wants.store(wants, std::memory_order_seq_cst);
  if (!closed() && !there()) {
    auto woken =
        os::futex_wait(header_->consumer_event, seen, timeout_ns, static_cast<bool>(file_));
    // Nobody should need this, but a wake-up may have been meant for a worker that was killed.
    if (woken == os::Woken::kTimeout) wake_some(workers_);
  }
  header_->wants.store(0, std::memory_order_relaxed);
}

void Board::consumer_wait(uint64_t seq, int64_t timeout_ns, const std::function<bool()>& also) {
  wake_workers(true);
  auto there = [&] {
    if (also && also()) return true;
    if (also && head() == posted()) return false;  // that the ring has room is no news
    return seq == kAnySeq ? progress() : ready(seq);
  };
  if (exclusive_.load(std::memory_order_relaxed) && typical_ticket_ns() < kQuickNs) {
    // The one that was woken may have met a ticket that takes longer: then the others are.
    int64_t while_ns = timeout_ns < 0 ? kPatienceNs : std::min(timeout_ns, kPatienceNs);
    sleep_until(seq + 1, while_ns, there);
    if (closed() || there() || timeout_ns == while_ns) return;
  }
  sleep_until(seq + 1, timeout_ns, there);
}

void Board::consumer_wait_at_rest(uint64_t seq, int64_t timeout_ns) {
  sleep_until(kAnySeq + 1, timeout_ns, [&] { return withdraw(seq); });
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
  for (uint32_t g = 0; g < granules_; ++g) {
    UnitState state = state_of(unit_at(end, g).word.load(std::memory_order_seq_cst));
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

void Board::wake_workers(bool consumer_waits) {
  bool any = false;
  for (auto& mask : header_->sleeping) any = any || mask.load(std::memory_order_seq_cst) != 0;
  if (!any) return;
  uint64_t posted = header_->posted.load(std::memory_order_relaxed);
  // An owned post has one worker that may do it.
  for (uint64_t seq = header_->head.load(std::memory_order_relaxed); seq < posted; ++seq) {
    Post& post = post_at(seq);
    if (post.owner == kAnyWorker) break;
    uint64_t word = unit_at(seq, 0).word.load(std::memory_order_relaxed);
    if (state_of(word) == UnitState::kOpen) wake_one(post.owner);
  }
  uint64_t hint = header_->hint.load(std::memory_order_relaxed);
  if (posted * granules_ <= hint) return;  // what is opened again wakes somebody by itself
  uint64_t open = posted * granules_ - hint;
  uint64_t each = typical_ticket_ns();
  if (!consumer_waits) {
    // Waking costs some 40 us: worth it for that much work, or for a quarter of the ring.
    uint64_t worth = 40'000 / std::max<uint64_t>(each, 1);
    if (open < std::min<uint64_t>(worth, posts_ * granules_ / 4)) return;
  }
  wake_some(exclusive_.load(std::memory_order_relaxed) && each < kQuickNs ? 1 : open);
}

bool Board::asleep(uint32_t worker) const {
  uint64_t mask = header_->sleeping[worker / 64].load(std::memory_order_seq_cst);
  return (mask >> (worker % 64) & 1) != 0;
}

bool Board::wake_one(uint32_t worker) {
  uint64_t bit = uint64_t{1} << (worker % 64);
  if ((header_->sleeping[worker / 64].load(std::memory_order_seq_cst) & bit) == 0) return false;
  if ((header_->sleeping[worker / 64].fetch_and(~bit) & bit) == 0) return false;
  places_[worker].event.fetch_add(1, std::memory_order_seq_cst);
  os::futex_wake(places_[worker].event, 1, static_cast<bool>(file_));
  return true;
}

void Board::wake_some(uint64_t count) {
  uint32_t first = wake_first_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < workers_ && count > 0; ++i) {
    uint32_t worker = first + i < workers_ ? first + i : first + i - workers_;
    if (wake_one(worker)) --count;
  }
}

// ---- a worker ----------------------------------------------------------------------------------

bool Board::try_claim(Unit& unit, uint64_t word, uint32_t worker, uint64_t seq, uint32_t granule,
                      Claim& out) {
  uint64_t mine = word_of(seq, worker, attempt_of(word), losses_of(word), UnitState::kClaimed);
  if (!unit.word.compare_exchange_strong(word, mine, std::memory_order_seq_cst)) return false;
  out = {&post_at(seq), &unit, seq, granule, worker, losses_of(mine), mine};
  places_[worker].tickets.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Board::claim(uint32_t worker, uint64_t& cursor, Claim& out) {
  if (closed()) return false;
  uint64_t end = posted() * granules_;
  uint64_t first = head() * granules_;
  uint64_t hint = header_->hint.load(std::memory_order_relaxed);
  // The hint only saves looking: whatever it says, every open unit from head on is found when
  // something was reopened, and before a worker sleeps.
  std::atomic<uint64_t>& looked = places_[worker].reopens;
  uint64_t reopens = header_->reopens.load(std::memory_order_seq_cst);
  bool all = reopens != looked.load(std::memory_order_relaxed) || cursor == UINT64_MAX;
  uint64_t start = all ? first : std::max({first, hint, cursor});
  for (uint64_t u = start; u < end; ++u) {
    uint64_t seq = u / granules_;
    uint32_t granule = u % granules_;
    Unit& unit = unit_at(seq, granule);
    uint64_t word = unit.word.load(std::memory_order_acquire);
    if (state_of(word) != UnitState::kOpen || seq_of(word) != seq) continue;
    uint32_t owner = post_at(seq).owner.load(std::memory_order_relaxed);
    if (owner != kAnyWorker && owner != worker) continue;
    if (!try_claim(unit, word, worker, seq, granule, out)) continue;
    if (owner == kAnyWorker && u + 1 > hint) {
      header_->hint.store(u + 1, std::memory_order_relaxed);
    }
    // Nothing that was open is left behind the hint.
    if (all && u >= hint) looked.store(reopens, std::memory_order_relaxed);
    cursor = owner == kAnyWorker ? 0 : u + 1;  // a stream's tickets are claimed in their order
    return true;
  }
  if (all) looked.store(reopens, std::memory_order_relaxed);
  return false;
}

bool Board::claim_of(uint32_t worker, uint64_t seq, Claim& out) {
  for (uint32_t g = 0; g < granules_; ++g) {
    Unit& unit = unit_at(seq, g);
    uint64_t word = unit.word.load(std::memory_order_acquire);
    if (state_of(word) == UnitState::kOpen && seq_of(word) == seq &&
        try_claim(unit, word, worker, seq, g, out)) {
      return true;
    }
  }
  return false;
}

bool Board::begin_result(const Claim& claim) {
  uint64_t word = claim.word;
  return claim.unit->word.compare_exchange_strong(word, with_state(word, UnitState::kWriting));
}

void Board::finish(const Claim& claim) {
  claim.unit->worker = claim.worker;
  claim.unit->word.store(with_state(claim.word, UnitState::kDone), std::memory_order_seq_cst);
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

void Board::wait_for_work(uint32_t worker, uint64_t& cursor) {
  uint32_t seen = places_[worker].event.load(std::memory_order_acquire);
  uint64_t bit = uint64_t{1} << (worker % 64);
  header_->sleeping[worker / 64].fetch_or(bit, std::memory_order_seq_cst);
  // Look again, at every unit: what was posted before the bit was seen is found here.
  bool there = closed();
  uint64_t end = header_->posted.load(std::memory_order_seq_cst) * granules_;
  for (uint64_t u = head() * granules_; u < end && !there; ++u) {
    uint64_t seq = u / granules_;
    uint64_t word = unit_at(seq, u % granules_).word.load(std::memory_order_seq_cst);
    if (state_of(word) != UnitState::kOpen || seq_of(word) != seq) continue;
    uint32_t owner = post_at(seq).owner.load(std::memory_order_relaxed);
    there = owner == kAnyWorker || owner == worker;
  }
  if (there) {
    header_->sleeping[worker / 64].fetch_and(~bit);
    cursor = UINT64_MAX;  // wherever it is, find it
    return;
  }
  os::futex_wait(places_[worker].event, seen, -1, static_cast<bool>(file_));
  header_->sleeping[worker / 64].fetch_and(~bit);
}

// ---- the supervisor ----------------------------------------------------------------------------

uint64_t Board::oldest() const {
  uint64_t end = posted();
  return end > posts_ ? end - posts_ : 0;
}

Board::Claim Board::claim_in(uint64_t seq, uint32_t granule, uint64_t word) {
  return {&post_at(seq),
          &unit_at(seq, granule),
          seq,
          granule,
          worker_of(word),
          losses_of(word),
          with_state(word, UnitState::kClaimed)};
}

uint32_t Board::reopen(uint32_t worker, uint32_t most, void (*too_often)(void*, const Claim&),
                       void* of) {
  uint32_t count = 0;
  for (uint64_t seq = oldest(), end = posted(); seq < end; ++seq) {
    for (uint32_t g = 0; g < granules_; ++g) {
      Unit& unit = unit_at(seq, g);
      uint64_t word = unit.word.load(std::memory_order_acquire);
      UnitState state = state_of(word);
      if ((state != UnitState::kClaimed && state != UnitState::kWriting) ||
          worker_of(word) != worker || seq_of(word) != seq) {
        continue;
      }
      Claim claim = claim_in(seq, g, word);
      Post& post = post_at(seq);
      uint32_t proposing = layout_word(seq, LayoutState::kProposing, worker);
      if (post.layout_state.compare_exchange_strong(proposing,
                                                    layout_word(seq, LayoutState::kNone))) {
        os::futex_wake(post.layout_state, 1 << 20, static_cast<bool>(file_));
      }
      if (seq < head()) {
        unit.kind = ResultKind::kNone;
        finish(claim);
        continue;
      }
      ++count;
      if (losses_of(word) + 1 >= most) {
        too_often(of, claim);
      } else {
        reopen_unit(claim, losses_of(word) + 1);
      }
    }
  }
  header_->sleeping[worker / 64].fetch_and(~(uint64_t{1} << (worker % 64)));
  // It may have died with a wake-up in hand: one that it was given, or one that it owed.
  wake_some(1);
  nudge_consumer();
  return count;
}

void Board::reopen_unit(const Claim& claim, uint32_t losses) {
  claim.unit->kind = ResultKind::kNone;
  claim.unit->length = 0;
  claim.unit->claimed_ns.store(0, std::memory_order_relaxed);
  claim.unit->progress.store(0, std::memory_order_relaxed);
  uint32_t attempt = attempt_of(claim.word) % 255 + 1;
  uint32_t owner = claim.post->owner.load(std::memory_order_relaxed);
  claim.unit->word.store(word_of(claim.seq, 0, attempt, losses, UnitState::kOpen),
                         std::memory_order_seq_cst);
  // After the unit is open: whoever has seen this count finds the unit, or that it is taken.
  header_->reopens.fetch_add(1, std::memory_order_seq_cst);
  if (owner == kAnyWorker) {
    wake_some(1);
  } else {
    wake_one(owner);
  }
}

bool Board::take_over(const Claim& claim) { return begin_result(claim); }

// ---- anybody -----------------------------------------------------------------------------------

void Board::close() {
  header_->closed.store(1, std::memory_order_seq_cst);
  for (uint32_t w = 0; w < workers_; ++w) {
    places_[w].event.fetch_add(1, std::memory_order_seq_cst);
    os::futex_wake(places_[w].event, 1 << 20, static_cast<bool>(file_));
  }
  for (uint32_t p = 0; p < posts_; ++p) {
    os::futex_wake(post_ring_[p].layout_state, 1 << 20, static_cast<bool>(file_));
  }
  nudge_consumer();
}

bool Board::closed() const { return header_->closed.load(std::memory_order_acquire) != 0; }

}  // namespace penstock
