#include "penstock/workers/board.h"

#include <algorithm>
#include <iterator>

#include "penstock/workers/board_header.h"

namespace penstock {

Ledger Board::ledger(uint32_t worker, uint32_t arena) {
  return {&places_[0].memory,    sizeof(WorkerPlace), workers_, worker,
          in_use(worker, arena), &common_->most_live};
}
BlocksInUse Board::in_use(uint32_t worker, uint32_t arena) {
  return {std::shared_ptr<std::atomic<uint64_t>>(base_, &places_[worker].memory.in_use), arena};
}
void Board::expect_in_use(uint64_t bytes) { atomic_max(common_->most_live, bytes); }
ConsumerCounters& Board::consumer() { return header_->consumer; }

WorkerFigures Board::figures(uint32_t worker) {
  WorkerPlace& place = places_[worker];
  WorkerFigures figures{};
  // A wait that ends meanwhile would be seen twice or not at all. Whoever ends it may die in it.
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

TraceRing& Board::consumer_trace() { return header_->consumer_trace; }
uint64_t Board::head() const { return header_->head.load(std::memory_order_acquire); }
uint64_t Board::posted() const { return header_->posted.load(std::memory_order_acquire); }

// ---- poisoned calls ----------------------------------------------------------------------------
//
// Each unit has a list of its own. Its pages are there only once it is written to, and what is
// behind its count is of an earlier post.

std::span<Poisoned> Board::poisoned_of(const Claim& claim) const {
  const auto unit = static_cast<size_t>(claim.unit - unit_ring_);
  return {poisoned_ring_ + unit * most_poisoned_, most_poisoned_};
}

std::optional<Board::Ending> Board::ending(const Claim& claim, const Call& call) const {
  const uint32_t count = claim.unit->poisoned.load(std::memory_order_acquire);
  for (const Poisoned& each : poisoned_of(claim).first(count)) {
    if (each.call.load(std::memory_order_relaxed) != call.word()) continue;
    const uint64_t ending = each.ending.load(std::memory_order_relaxed);
    return Ending{static_cast<uint32_t>(ending >> 8), static_cast<ResultKind>(ending & 0xff)};
  }
  return std::nullopt;
}

bool Board::poison(const Claim& claim, const Call& call, ResultKind kind) {
  const uint32_t count = claim.unit->poisoned.load(std::memory_order_relaxed);
  if (count == most_poisoned_ || ending(claim, call)) return false;
  Poisoned& next = poisoned_of(claim)[count];
  if (!there(&next, sizeof(Poisoned))) return false;
  next.call.store(call.word(), std::memory_order_relaxed);
  next.ending.store(uint64_t{claim.worker} << 8 | static_cast<uint64_t>(kind),
                    std::memory_order_relaxed);
  claim.unit->poisoned.store(count + 1, std::memory_order_release);
  return true;
}

void Board::set_exclusive(bool exclusive) {
  exclusive_.store(exclusive, std::memory_order_relaxed);
  for (auto& lane : inner_) lane->set_exclusive(exclusive);
}

// ---- the consumer ------------------------------------------------------------------------------

bool Board::idle(uint64_t seq) {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    uint64_t word = unit_at(seq, g).word.load(std::memory_order_acquire);
    if (Unit::state_of(word) != UnitState::kIdle) return false;
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

// Units behind a post's last granule are idle, as they always are.
void Board::publish(Post& post) {
  for (uint32_t g = 0, end = granules_at(post.seq); g < end; ++g) {
    Unit& unit = unit_at(post.seq, g);
    unit.poisoned.store(0, std::memory_order_relaxed);
    unit.claimed_ns.store(0, std::memory_order_relaxed);
    unit.in_hand.store(0, std::memory_order_relaxed);
    unit.kind = ResultKind::kNone;
    unit.length = 0;
    unit.bytes = 0;
    unit.object = 0;
    unit.word.store(Unit::word_of(post.seq, 0, 0, 0, UnitState::kOpen), std::memory_order_release);
  }
  header_->posted.store(post.seq + 1, std::memory_order_seq_cst);
}

bool Board::ready(uint64_t seq) {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    uint64_t word = unit_at(seq, g).word.load(std::memory_order_seq_cst);
    if (Unit::state_of(word) != UnitState::kDone || Unit::seq_of(word) != seq) return false;
  }
  return true;
}

void Board::clear(uint64_t seq) {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    unit_at(seq, g).word.store(0, std::memory_order_release);
  }
}

void Board::close_layout(uint64_t seq) {
  std::atomic<uint32_t>& state = post_at(seq).layout_state;
  uint32_t serving = layout_word(seq, LayoutState::kProposing, Post::kServer);
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
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    Unit& unit = unit_at(seq, g);
    uint64_t word = unit.word.load(std::memory_order_acquire);
    while (Unit::state_of(word) == UnitState::kOpen && !unit.word.compare_exchange_weak(word, 0)) {
    }
    UnitState state = Unit::state_of(unit.word.load(std::memory_order_seq_cst));
    at_rest = at_rest && (state == UnitState::kIdle || state == UnitState::kDone);
  }
  return at_rest;
}

// ---- a worker ----------------------------------------------------------------------------------

bool Board::try_claim(Unit& unit, uint64_t word, uint32_t worker, uint64_t seq, uint32_t granule,
                      Claim& out) {
  uint64_t mine = Unit::word_of(seq, worker, Unit::attempt_of(word), Unit::losses_of(word),
                                UnitState::kClaimed);
  places_[worker].in_hand.store(0, std::memory_order_relaxed);
  if (!unit.word.compare_exchange_strong(word, mine, std::memory_order_seq_cst)) return false;
  out = {&post_at(seq), &unit, seq, granule, worker, Unit::losses_of(mine), mine, lane_};
  places_[worker].tickets.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool Board::claim(uint32_t worker, uint64_t& cursor, Claim& out) {
  if (closed() || worker >= active()) return false;
  uint64_t end = posted() * granules_;
  uint64_t first = head() * granules_;
  uint64_t hint = header_->hint.load(std::memory_order_relaxed);
  // The hint only saves looking: whatever it says, every open unit from head on is found when
  // something was reopened, and before a worker sleeps.
  std::atomic<uint64_t>& looked = places_[worker].reopens[lane_];
  uint64_t reopens = header_->reopens.load(std::memory_order_seq_cst);
  bool all = reopens != looked.load(std::memory_order_relaxed) || cursor == UINT64_MAX;
  uint64_t start = all ? first : std::max({first, hint, cursor});
  for (uint64_t u = start, next; u < end; u = next) {
    const uint64_t seq = u / granules_;
    const auto granule = static_cast<uint32_t>(u % granules_);
    next = granule + 1 < granules_at(seq) ? u + 1 : (seq + 1) * granules_;
    Unit& unit = unit_at(seq, granule);
    uint64_t word = unit.word.load(std::memory_order_acquire);
    if (Unit::state_of(word) != UnitState::kOpen || Unit::seq_of(word) != seq) continue;
    uint32_t owner = post_at(seq).owner.load(std::memory_order_relaxed);
    if (owner != kAnyWorker && owner != worker) continue;
    if (!try_claim(unit, word, worker, seq, granule, out)) continue;
    if (owner == kAnyWorker && next > hint) {
      header_->hint.store(next, std::memory_order_relaxed);
    }
    // Nothing that was open is left behind the hint.
    if (all && u >= hint) looked.store(reopens, std::memory_order_relaxed);
    cursor = owner == kAnyWorker ? 0 : next;  // a stream's tickets are claimed in their order
    return true;
  }
  if (all) looked.store(reopens, std::memory_order_relaxed);
  return false;
}

bool Board::claim_of(uint32_t worker, uint64_t seq, Claim& out) {
  for (uint32_t g = 0, end = granules_at(seq); g < end; ++g) {
    Unit& unit = unit_at(seq, g);
    uint64_t word = unit.word.load(std::memory_order_acquire);
    if (Unit::state_of(word) == UnitState::kOpen && Unit::seq_of(word) == seq &&
        try_claim(unit, word, worker, seq, g, out)) {
      return true;
    }
  }
  return false;
}

bool Board::begin_result(const Claim& claim) {
  uint64_t word = claim.word;
  return claim.unit->word.compare_exchange_strong(word,
                                                  Unit::with_state(word, UnitState::kWriting));
}

void Board::finish(const Claim& claim) {
  claim.unit->worker = claim.worker;
  claim.unit->word.store(Unit::with_state(claim.word, UnitState::kDone), std::memory_order_seq_cst);
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

bool Board::open_for(uint32_t worker) {
  uint64_t end = header_->posted.load(std::memory_order_seq_cst) * granules_;
  for (uint64_t u = head() * granules_, next; u < end; u = next) {
    const uint64_t seq = u / granules_;
    next = u % granules_ + 1 < granules_at(seq) ? u + 1 : (seq + 1) * granules_;
    uint64_t word = unit_at(seq, u % granules_).word.load(std::memory_order_seq_cst);
    if (Unit::state_of(word) != UnitState::kOpen || Unit::seq_of(word) != seq) continue;
    uint32_t owner = post_at(seq).owner.load(std::memory_order_relaxed);
    if (owner == kAnyWorker || owner == worker) return true;
  }
  return false;
}

void Board::wait_for_work(uint32_t worker, uint64_t& cursor, uint64_t since) {
  uint32_t seen = places_[worker].event.load(std::memory_order_acquire);
  if (worker >= active()) {
    wake_some(1);  // it may have been woken for work that it will not do now
    if (!closed()) os::futex_wait(places_[worker].event, seen, -1, static_cast<bool>(file_));
    cursor = UINT64_MAX;  // wherever work is when it is active again, find it
    return;
  }
  uint64_t bit = uint64_t{1} << (worker % 64);
  common_->sleeping[worker / 64].fetch_or(bit, std::memory_order_seq_cst);
  // Look again, at every unit: what was posted before the bit was seen is found here.
  bool there = closed() || open_for(worker);
  for (auto& lane : inner_) there = there || lane->open_for(worker);
  if (there && (closed() || !spare(worker))) {
    common_->sleeping[worker / 64].fetch_and(~bit);
    cursor = UINT64_MAX;  // wherever it is, find it
    return;
  }
  if (!spare(worker)) places_[worker].waiting_since.store(since, std::memory_order_relaxed);
  os::futex_wait(places_[worker].event, seen, -1, static_cast<bool>(file_));
  common_->sleeping[worker / 64].fetch_and(~bit);
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
          Unit::worker_of(word),
          Unit::losses_of(word),
          Unit::with_state(word, UnitState::kClaimed),
          lane_};
}

uint32_t Board::reopen(uint32_t worker, uint32_t most, void (*too_often)(void*, const Claim&),
                       void* of) {
  uint32_t count = 0;
  for (uint64_t seq = oldest(), end = posted(); seq < end; ++seq) {
    // Whether the ticket is still its own or not: other granules may be waiting for the layout.
    uint32_t proposing = layout_word(seq, LayoutState::kProposing, worker);
    std::atomic<uint32_t>& layout = post_at(seq).layout_state;
    if (layout.compare_exchange_strong(proposing, layout_word(seq, LayoutState::kNone))) {
      os::futex_wake(layout, 1 << 20, static_cast<bool>(file_));
    }
    for (uint32_t g = 0; g < granules_; ++g) {
      Unit& unit = unit_at(seq, g);
      uint64_t word = unit.word.load(std::memory_order_acquire);
      UnitState state = Unit::state_of(word);
      if ((state != UnitState::kClaimed && state != UnitState::kWriting) ||
          Unit::worker_of(word) != worker || Unit::seq_of(word) != seq) {
        continue;
      }
      Claim claim = claim_in(seq, g, word);
      if (seq < head()) {
        unit.kind = ResultKind::kNone;
        finish(claim);
        continue;
      }
      ++count;
      if (Unit::losses_of(word) + 1 >= most) {
        too_often(of, claim);
      } else {
        reopen_unit(claim, Unit::losses_of(word) + 1);
      }
    }
  }
  common_->sleeping[worker / 64].fetch_and(~(uint64_t{1} << (worker % 64)));
  // It may have died with a wake-up in hand: one that it was given, or one that it owed.
  wake_some(1);
  nudge_consumer();
  return count;
}

void Board::reopen_unit(const Claim& claim, uint32_t losses) {
  claim.unit->kind = ResultKind::kNone;
  claim.unit->length = 0;
  claim.unit->claimed_ns.store(0, std::memory_order_relaxed);
  claim.unit->in_hand.store(0, std::memory_order_relaxed);
  uint32_t attempt = Unit::attempt_of(claim.word) % 255 + 1;
  uint32_t owner = claim.post->owner.load(std::memory_order_relaxed);
  claim.unit->word.store(Unit::word_of(claim.seq, 0, attempt, losses, UnitState::kOpen),
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
  common_->closed.store(1, std::memory_order_seq_cst);
  for (uint32_t w = 0; w < workers_; ++w) {
    places_[w].event.fetch_add(1, std::memory_order_seq_cst);
    os::futex_wake(places_[w].event, 1 << 20, static_cast<bool>(file_));
  }
  for (uint32_t l = 0; l < lanes(); ++l) {
    Board& of = lane(l);
    for (uint32_t p = 0; p < of.posts_; ++p) {
      os::futex_wake(of.post_ring_[p].layout_state, 1 << 20, static_cast<bool>(file_));
    }
    of.nudge_consumer();
  }
}

bool Board::closed() const { return common_->closed.load(std::memory_order_acquire) != 0; }

}  // namespace penstock
