#include "penstock/pipeline/feed/feed.h"

#include <algorithm>
#include <string>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock {

Feed::Feed(Board& board, Allocator& arena, Tickets& tickets, const Options& options,
           std::function<void(Unit&)> discard)
    : board_(board),
      arena_(arena),
      tickets_(tickets),
      options_(options),
      discard_(std::move(discard)),
      queue_(options.queue),
      trace_(&board.consumer_trace()) {
  if (!options_.tuning) return;
  // A stream's tickets have an owner, who must not be parked.
  if (tickets_.streams() != 0) options_.tuning->workers = false;
  tuner_.emplace(*options_.tuning, Tuner::Settings{options_.workers, options_.queue});
}

Feed::~Feed() = default;

void Feed::drain() {
  for (uint64_t seq = board_.oldest(), end = board_.posted(); seq < end; ++seq) {
    for (uint32_t g = 0, last = board_.granules_at(seq); g < last; ++g) {
      Unit& unit = board_.unit_at(seq, g);
      uint64_t word = unit.word.load(std::memory_order_acquire);
      if (Unit::state_of(word) != UnitState::kDone || Unit::seq_of(word) != seq) continue;
      if (unit.kind != ResultKind::kNone) discard_(unit);
      unit.kind = ResultKind::kNone;
    }
    Post& post = board_.post_at(seq);
    // A thread that close() did not wait for goes on with it.
    const bool at_rest = board_.withdraw(seq);
    if (!at_rest && board_.fd() < 0) post.tainted.store(1, std::memory_order_relaxed);
    release_memory(post);
  }
  arena_.trim();
}

// ---- taking ------------------------------------------------------------------------------------

bool Feed::ended(const Position& at) const {
  if (auto steps = tickets_.steps(at.epoch, at.base)) return at.step >= *steps;
  return known_end_ && cursor_.epoch == at.epoch && at.step >= *known_end_;
}

std::optional<uint64_t> Feed::candidate() {
  uint64_t head = board_.head(), posted = board_.posted();
  if (options_.ordered) return head < posted ? std::optional(head) : std::nullopt;
  std::optional<uint64_t> found;
  for (uint64_t seq = head; seq < posted; ++seq) {
    // The next epoch's batches wait until this one's are all out.
    if (board_.post_at(seq).epoch != position_.epoch) break;
    if (!board_.ready(seq)) continue;
    found = posted = seq;
    // A stream's batches get ready in their order, but perhaps the one before did after it was
    // looked at: then this may be the stream's end, and would be taken for its next.
    if (tickets_.streams() != 0) seq = head - 1;
  }
  return found;
}

std::optional<uint64_t> Feed::next_open() {
  uint64_t head = board_.head();
  return head < board_.posted() ? std::optional(head) : std::nullopt;
}

// The consumer asks: what went before was its own time.
void Feed::read_clock_on_asking() {
  asked_ns_ = now_ns();
  ConsumerCounters& counters = board_.consumer();
  if (given_ns_ == 0) {
    counters.first_ns.set(asked_ns_);
  } else {
    counters.busy_ns.add_single_writer(asked_ns_ - given_ns_);
    trace_.record(TraceKind::kConsumerBusy, given_ns_, asked_ns_, position_.epoch, position_.step);
    // Batches that come faster than this are timed a few at a time: reading the clock would be a
    // noticeable part of them. Those in between were there when they were asked for.
    quick_ = (asked_ns_ - given_ns_) / (untimed_ + 1) < kQuickNs;
  }
  untimed_ = 0;
  if (asked_ns_ >= next_depth_ns_) {
    next_depth_ns_ = asked_ns_ + 1'000'000;
    const uint32_t ready = depth();
    depths_.add(asked_ns_, ready);
    least_ready_ = std::min(least_ready_, ready);
  }
  if (tuner_ && asked_ns_ - tuned_ns_ >= Tuner::kPeriodNs) tune();
}

// Shows the tuner what was counted since the last time, and does what it says.
void Feed::tune() {
  const uint64_t delivered = board_.consumer().delivered.get();
  uint64_t busy = 0;
  for (uint32_t w = 0; w < board_.workers(); ++w) busy += board_.place(w).counters.busy_ns.get();
  if (tuned_ns_ != 0) {
    // Where one does it all, the others are not idle for want of tickets.
    const uint64_t times = board_.one_does() ? options_.workers : 1;
    const Tuner::Settings& to =
        tuner_->next({asked_ns_ - tuned_ns_, held_up_ns_, delivered - tuned_delivered_,
                      (busy - tuned_busy_ns_) * times, least_ready_, batch_bytes_});
    queue_.store(to.queue, std::memory_order_relaxed);
    if (to.workers != options_.workers) board_.set_active(options_.workers = to.workers);
  }
  tuned_ns_ = asked_ns_;
  tuned_delivered_ = delivered;
  tuned_busy_ns_ = busy;
  held_up_ns_ = 0;
  least_ready_ = UINT32_MAX;
}

Feed::Poll Feed::poll(uint64_t epoch) {
  if (options_.on_asking && asked_ns_ == 0) read_clock_on_asking();
  fill();
  auto there = asked_ns_ == 0 && quick_ && untimed_ + 1 < kUntimed ? candidate() : std::nullopt;
  if (there && board_.ready(*there) && position_.epoch == epoch && !ended(position_)) {
    ++untimed_;
    current_ = *there;
    return Poll::kBatch;
  }
  if (asked_ns_ == 0) read_clock_on_asking();
  if (position_.epoch != epoch) return Poll::kEpochEnd;
  if (ended(position_)) {
    position_ = {epoch + 1, 0, 0};
    ahead_.clear();
    return Poll::kEpochEnd;
  }
  auto seq = candidate();
  if (!seq && failed_) return Poll::kFailed;
  if (!seq || !board_.ready(*seq)) {
    late_ = true;
    return Poll::kWait;
  }
  current_ = *seq;
  return Poll::kBatch;
}

void Feed::end_stream() {
  Post& post = current();
  Position at{post.epoch, post.base, post.step};
  streams_ended_.insert(post.stream);
  if (streams_ended_.size() >= tickets_.streams()) {
    seek({at.epoch + 1, 0, 0});
    held_ = options_.pause_at_epochs;
    return;
  }
  clear_current();
  moved_past(at);
  fill_ahead();
}

void Feed::wait(int64_t timeout_ns) {
  uint64_t head = board_.head();
  bool one = options_.ordered && head < board_.posted();
  if (starved_) {
    board_.consumer_wait(one ? head : Board::kAnySeq, timeout_ns,
                         [this] { return tickets_.ready(); });
  } else {
    board_.consumer_wait(one ? head : Board::kAnySeq, timeout_ns);
  }
}

std::optional<uint32_t> Feed::failed_granule() {
  for (uint32_t g = 0, last = board_.granules_at(current_); g < last; ++g) {
    switch (board_.unit_at(current_, g).kind) {
      case ResultKind::kError:
      case ResultKind::kTimeout:
      case ResultKind::kLost:
      case ResultKind::kNoRoom:
      case ResultKind::kBroken:
        return g;
      default:
        break;
    }
  }
  return std::nullopt;
}

Lease Feed::take_rows() {
  Post& post = current();
  board_.close_layout(current_);
  if (post.slot_bytes == 0) return {};
  std::byte* room = arena_.region()->base() + post.slot_offset;
  Lease lease = arena_.lease(room);
  if (!lease) {  // no page for the lease's own header
    uint64_t bytes = post.slot_bytes;
    fail();
    throw Error(Code::kOutOfMemory, "batch",
                "no room to lease a batch of " + std::to_string(bytes) + " bytes");
  }
  if (post.rows >= slot_rows_) {  // a short last batch is no measure for the next ones
    slot_rows_ = post.rows;
    slot_bytes_ = post.needed_bytes;
  }
  if (post.tainted.load(std::memory_order_relaxed) == 0) arena_.release(room);
  post.slot_bytes = 0;
  return lease;
}

void Feed::moved_past(const Position& at) {
  if (at.step != position_.step) {
    ahead_.insert(at.step);
    return;
  }
  ++position_.step;
  while (!ahead_.empty() && *ahead_.begin() == position_.step) {
    ahead_.erase(ahead_.begin());
    ++position_.step;
  }
  if (ended(position_)) {
    position_ = {position_.epoch + 1, 0, 0};
    ahead_.clear();
    board_.consumer().epochs.add_single_writer();
  }
}

void Feed::clear_current() {
  retire(current_);
  uint64_t head = board_.head();
  if (current_ != head) {
    ++taken_;
    return;
  }
  ++head;
  while (head < board_.posted() && board_.idle(head)) {
    ++head;
    --taken_;
  }
  board_.advance_head(head);
}

void Feed::deliver(uint64_t bytes, uint64_t samples) {
  Post& post = current();
  Position at{post.epoch, post.base, post.step};
  batch_bytes_ = std::max(batch_bytes_, bytes);
  sized_ = true;
  // Threads share one arena: there one that is woken again and again is better than many in turn.
  if (board_.fd() >= 0) board_.wake_first(board_.unit_at(current_, 0).worker);
  clear_current();
  moved_past(at);
  fill_ahead();
  // A tuned queue may be much shorter than the ring, a quarter of which workers are woken for.
  const bool short_queue = options_.tuning && options_.tuning->queue;
  board_.wake_workers(short_queue && current_ % std::max<uint64_t>(window() / 2, 1) == 0);

  ConsumerCounters& counters = board_.consumer();
  counters.delivered.add_single_writer();
  counters.samples.add_single_writer(samples);
  counters.bytes.add_single_writer(bytes);
  if (asked_ns_ == 0) return;  // untimed
  // Who makes how many of the batches changes all the time. Arenas that kept no more than was in
  // use at once would give pages back for each other's next batch to fault in, although fewer
  // batches wait than may: all that may be in flight, and the one just given, can have pages.
  if (board_.fd() >= 0 && slot_bytes_ == 0) {
    board_.expect_in_use((window() + 1) * (counters.bytes.get() / counters.delivered.get()));
  }
  const bool first = given_ns_ == 0;
  given_ns_ = now_ns();
  counters.last_ns.set(given_ns_);
  counters.wait_ns.add_single_writer(given_ns_ - asked_ns_);
  if (first) counters.first_wait_ns.set(given_ns_ - asked_ns_);
  if (std::exchange(late_, false)) held_up_ns_ += given_ns_ - asked_ns_;
  trace_.record(TraceKind::kConsumerWait, asked_ns_, given_ns_, at.epoch, at.step);
  asked_ns_ = 0;
}

void Feed::skip() {
  Post& post = current();
  Position at{post.epoch, post.base, post.step};
  clear_current();
  moved_past(at);
  fill_ahead();
}

void Feed::fail() {
  board_.consumer().errors.add();  // workers add to it as well
  given_ns_ = now_ns();
  asked_ns_ = 0;
  late_ = false;
  seek(position_, std::move(ahead_));
  held_ = true;  // nobody may ask again: make nothing until somebody does
}

uint32_t Feed::depth() {
  uint32_t count = 0;
  for (uint64_t seq = board_.head(), end = board_.posted(); seq < end; ++seq) {
    count += board_.ready(seq);
  }
  return count;
}

}  // namespace penstock
