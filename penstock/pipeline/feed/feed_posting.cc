// The feed: which tickets go out, and how many at a time; taking them back.
#include <algorithm>
#include <utility>

#include "penstock/pipeline/feed/feed.h"
#include "penstock/pipeline/feed/granules.h"

namespace penstock {

uint64_t Feed::window() const {
  uint64_t most = queue() + options_.workers;
  // Nobody knows yet how large a batch is: one for each worker cannot be avoided.
  if (!sized_ && options_.max_bytes != UINT64_MAX) {
    most = std::min<uint64_t>(most, std::max(options_.workers, 1u));
  }
  // What a batch is made of may be there before it.
  const uint64_t input = tickets_.input_bytes();
  const uint64_t batch = sized_ ? batch_bytes_ : input, bytes = input + batch;
  if (bytes != 0) {
    // At least one, by default: the lowest undelivered ticket always gets its slot.
    const uint64_t left = options_.max_bytes - std::min(options_.max_bytes, tickets_.spent_bytes());
    most = std::min(most, std::max<uint64_t>(fitting(left, bytes, tickets_.work_bytes(batch)),
                                             tickets_.least()));
  }
  return most;
}

// Batches, of which each worker makes one at a time and has `work` more for it.
uint64_t Feed::fitting(uint64_t left, uint64_t bytes, uint64_t work) const {
  const uint64_t workers = std::max(options_.workers, 1u);
  const uint64_t made = left / (bytes + work);
  return made < workers ? made : (left - workers * work) / bytes;
}

uint32_t Feed::granules_of(uint32_t rows) const {
  if (options_.granule_rows != 0) {
    const uint32_t share = options_.granule_rows;
    return std::clamp((rows + share - 1) / share, 1u, board_.granules());
  }
  if (board_.granules() == 1 || !tickets_.divisible()) return 1;
  BatchDivision of{rows, board_.active(), window(), board_.head() == board_.posted()};
  if (!of.first && of.window >= of.workers) return 1;  // what nearly all batches come to
  of.row_ns = row_ns();
  of.most = board_.granules();
  return granules_for(of);
}

uint64_t Feed::row_ns() const {
  uint64_t busy_ns = 0, rows = 0;
  for (uint32_t w = 0; w < board_.workers(); ++w) {
    const WorkerCounters& counters = board_.place(w).counters;
    busy_ns += counters.busy_ns.get();
    rows += counters.samples.get();
  }
  return rows == 0 ? 0 : std::max<uint64_t>(busy_ns / rows, 1);
}

void Feed::fill() {
  starved_ = false;
  if (held_ || failed_ || board_.closed()) return;
  reap();
  for (uint64_t most = window(); in_flight() < most; most = sized_ ? most : window()) {
    // Steps that were delivered ahead before a restore are passed by as soon as the position
    // reaches them, which may be before the cursor does; it may even be in the next epoch.
    if (cursor_.epoch == position_.epoch) cursor_.step = std::max(cursor_.step, position_.step);
    if (ended(cursor_) || cursor_.epoch < position_.epoch) {
      if (options_.pause_at_epochs || !tickets_.steps(cursor_.epoch + 1, 0)) return;
      if (cursor_.step == 0 && cursor_.base == 0) return;  // an empty epoch repeats for ever
      cursor_ = {cursor_.epoch + 1, 0, 0};
      continue;
    }
    if (cursor_.epoch == position_.epoch && ahead_.contains(cursor_.step)) {
      ++cursor_.step;  // delivered before the state was taken
      continue;
    }
    if (!board_.can_post()) return;  // the ring is full, or withdrawn work still has the place
    Post& post = board_.next_post();
    post.epoch = cursor_.epoch;
    post.base = cursor_.base;
    post.step = cursor_.step;
    post.version = version_;
    post.owner = kAnyWorker;
    post.stream = 0;
    post.rows = 1;
    post.rows_together = false;
    post.indices_offset = 0;
    switch (tickets_.describe(cursor_, post)) {
      case Tickets::Described::kEnd:
        known_end_ = cursor_.step;
        continue;
      case Tickets::Described::kNotYet:
        starved_ = true;
        return;
      case Tickets::Described::kFailed:
        failed_ = true;
        return;
      case Tickets::Described::kPosted:
        break;
    }
    post.granules.store(granules_of(post.rows), std::memory_order_relaxed);
    if (slot_bytes_ != 0) {
      if (void* room = arena_.allocate(slot_bytes_)) {
        post.slot_offset = arena_.region()->offset_of(room);
        post.slot_bytes = slot_bytes_;
      }
    }
    board_.publish(post);
    ++cursor_.step;
  }
}

void Feed::make_ahead() {
  const uint64_t before = in_flight();
  fill();
  if (in_flight() > before) board_.wake_workers(false);
}

void Feed::retire(uint64_t seq) {
  Post& post = board_.post_at(seq);
  board_.close_layout(seq);
  for (uint32_t g = 0, last = board_.granules_at(seq); g < last; ++g) {
    Unit& unit = board_.unit_at(seq, g);
    if (unit.kind != ResultKind::kNone) discard_(unit);
    unit.kind = ResultKind::kNone;
  }
  release_memory(post);
  board_.clear(seq);
}

// A thread that nobody waits for may still read the indices and write the rows of a tainted post:
// both blocks stay allocated until the arena ends.
void Feed::release_memory(Post& post) {
  if (post.tainted.load(std::memory_order_relaxed) == 0) {
    std::byte* base = arena_.region()->base();
    if (post.indices_offset != 0) arena_.release(base + post.indices_offset);
    if (post.slot_bytes != 0) arena_.release(base + post.slot_offset);
  }
  post.indices_offset = 0;
  post.slot_bytes = 0;
}

// Work that was withdrawn while it was claimed keeps its memory and its place in the ring until its
// workers are done with it.
void Feed::reap() {
  std::erase_if(withdrawn_, [this](uint64_t seq) {
    if (!board_.withdraw(seq)) return false;
    retire(seq);
    return true;
  });
}

bool Feed::settle(int64_t timeout_ns) {
  reap();
  if (withdrawn_.empty()) return true;
  board_.consumer_wait_at_rest(withdrawn_.front(), timeout_ns);
  reap();
  return withdrawn_.empty();
}

void Feed::begin_epoch() {
  if (cursor_.epoch < position_.epoch) start_epoch_at(position_);
  held_ = false;
  fill_ahead();
}

void Feed::start_epoch_at(const Position& at) {
  cursor_ = at;
  failed_ = false;
  known_end_.reset();
  streams_ended_.clear();
}

void Feed::seek(const Position& to, std::set<uint64_t> ahead) {
  for (uint64_t seq = board_.head(), end = board_.posted(); seq < end; ++seq) {
    if (board_.idle(seq)) continue;  // taken already
    if (board_.withdraw(seq)) {
      retire(seq);
    } else {
      withdrawn_.push_back(seq);
    }
  }
  taken_ = 0;
  board_.advance_head(board_.posted());
  position_ = to;
  ahead_ = std::move(ahead);
  start_epoch_at(to);
}

}  // namespace penstock
