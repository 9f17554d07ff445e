#include "penstock/pipeline/scheduler/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/stream_chunk.h"

namespace penstock {

namespace {

std::optional<Tuner::Limits> tuning_of(const Scheduler::Options& options, const Tickets& tickets) {
  std::optional<Tuner::Limits> limits = options.tuning;
  // The tickets of a stream belong to one worker, which must not be parked.
  if (limits && tickets.streams() != 0) limits->workers = false;
  return limits;
}

}  // namespace

Scheduler::Scheduler(TicketRing& ring, Allocator& arena, Tickets& tickets, ByteBudget& budget,
                     const Options& options, std::function<void(Task&)> discard)
    : ring_(ring),
      end_(ring),
      arena_(arena),
      tickets_(tickets),
      options_(options),
      discard_(std::move(discard)),
      window_(
          ring, tickets, budget, {options.granule_rows, options.slow_start},
          options.on_grant ? options.on_grant : [&ring] { ring.nudge_consumer(); }),
      pace_(ring, {options.workers, options.queue}, tuning_of(options, tickets)) {}

Scheduler::~Scheduler() = default;

void Scheduler::drain() {
  for (uint64_t seq = ring_.oldest(), end = ring_.posted(); seq < end; ++seq) {
    for (uint32_t g = 0, last = ring_.granules_at(seq); g < last; ++g) {
      Task& task = ring_.task_at(seq, g);
      uint64_t word = task.word.load(std::memory_order_acquire);
      if (Task::state_of(word) != TaskState::kDone || Task::seq_of(word) != seq) continue;
      if (task.kind != ResultKind::kNone) discard_(task);
      task.kind = ResultKind::kNone;
    }
    BatchEntry& entry = end_.own_entry(seq);
    // A thread that close() did not wait for may still use the memory.
    const bool at_rest = end_.withdraw(seq);
    if (!at_rest && ring_.fd() < 0) entry.tainted.store(1, std::memory_order_relaxed);
    release_memory(entry);
    ring_.posted_at(seq).input_offset = 0;
  }
  arena_.trim();
}

// ---- taking batches ----------------------------------------------------------------------------

bool Scheduler::ended(const Position& at) const {
  if (auto steps = tickets_.steps(at.epoch, at.base)) return at.step >= *steps;
  return known_end_ && next_.epoch == at.epoch && at.step >= *known_end_;
}

std::optional<uint64_t> Scheduler::candidate() {
  uint64_t head = ring_.head(), posted = ring_.posted();
  if (options_.ordered) return head < posted ? std::optional(head) : std::nullopt;
  std::optional<uint64_t> found;
  for (uint64_t seq = head; seq < posted; ++seq) {
    // Batches of the next epoch wait until all of this one are delivered.
    if (ring_.posted_at(seq).epoch != position_.epoch) break;
    if (!ring_.ready(seq)) continue;
    found = posted = seq;
    // Batches of a stream become ready in order. But an earlier one may have become ready after it
    // was checked here; then this ticket may be the stream's end and must not be taken first.
    if (tickets_.streams() != 0) seq = head - 1;
  }
  return found;
}

std::optional<uint64_t> Scheduler::next_open() {
  uint64_t head = ring_.head();
  return head < ring_.posted() ? std::optional(head) : std::nullopt;
}

Scheduler::Poll Scheduler::poll(uint64_t epoch) {
  if (options_.describe_in_poll_only) pace_.ask(position_, window_.batch_bytes());
  fill();
  auto there = pace_.untimed() ? candidate() : std::nullopt;
  if (there && ring_.ready(*there) && position_.epoch == epoch && !ended(position_)) {
    pace_.skip_clock();
    take_up(*there);
    return Poll::kBatch;
  }
  pace_.ask(position_, window_.batch_bytes());
  if (position_.epoch != epoch) return Poll::kEpochEnd;
  if (ended(position_)) {
    position_ = {epoch + 1, 0, 0};
    ahead_.clear();
    return Poll::kEpochEnd;
  }
  auto seq = candidate();
  if (!seq && failed_) return Poll::kFailed;
  if (!seq || !ring_.ready(*seq)) {
    pace_.late();
    return Poll::kWait;
  }
  take_up(*seq);
  return Poll::kBatch;
}

void Scheduler::take_up(uint64_t seq) {
  current_ = seq;
  end_.own_entry(seq);
}

void Scheduler::end_stream() {
  const BatchEntry& entry = current();
  streams_ended_.insert(entry.stream);
  if (streams_ended_.size() < tickets_.streams()) {
    leave_current();
    return;
  }
  seek({entry.epoch + 1, 0, 0});
  held_ = options_.pause_at_epochs;
}

void Scheduler::wait(int64_t timeout_ns) {
  uint64_t head = ring_.head();
  bool one = options_.ordered && head < ring_.posted();
  if (undescribed_) {
    end_.wait(one ? head : TicketRing::kAnySeq, timeout_ns, [this] { return tickets_.ready(); });
  } else {
    end_.wait(one ? head : TicketRing::kAnySeq, timeout_ns);
  }
}

std::optional<uint32_t> Scheduler::failed_granule() {
  for (uint32_t g = 0, last = ring_.granules_at(current_); g < last; ++g) {
    switch (ring_.task_at(current_, g).kind) {
      case ResultKind::kError:
      case ResultKind::kTimeout:
      case ResultKind::kLost:
      case ResultKind::kNoSpace:
      case ResultKind::kBroken:
        return g;
      default:
        break;
    }
  }
  return std::nullopt;
}

Lease Scheduler::take_rows() {
  BatchEntry& entry = current();
  end_.close_layout(current_);
  if (entry.block_bytes == 0) return {};
  std::byte* space = arena_.region()->base() + entry.block_offset;
  Lease lease = arena_.lease(space);
  if (!lease) {  // no memory for the lease's header
    uint64_t bytes = entry.block_bytes;
    fail();
    throw Error(Code::kOutOfMemory, "batch",
                "no space to lease a batch of " + std::to_string(bytes) + " bytes");
  }
  window_.filled(entry.rows, entry.needed_bytes);
  if (entry.tainted.load(std::memory_order_relaxed) == 0) arena_.release(space);
  entry.block_bytes = 0;
  return lease;
}

void Scheduler::moved_past(const Position& at) {
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
    ring_.consumer().epochs.add_single_writer();
  }
}

void Scheduler::clear_current() {
  retire(current_);
  uint64_t head = ring_.head();
  if (current_ != head) {
    ++taken_;
    return;
  }
  ++head;
  while (head < ring_.posted() && ring_.idle(head)) {
    ++head;
    --taken_;
  }
  end_.advance_head(head);
}

void Scheduler::deliver(uint64_t bytes, uint64_t samples) {
  window_.delivered(bytes);
  const Position at = leave_current();
  // Workers are woken for a quarter of the ring. A tuned queue may be much shorter than that.
  end_.wake_workers(pace_.tunes_queue() && current_ % std::max<uint64_t>(window() / 2, 1) == 0);

  ConsumerCounters& counters = ring_.consumer();
  counters.delivered.add_single_writer();
  counters.samples.add_single_writer(samples);
  counters.bytes.add_single_writer(bytes);
  // The number of batches that each worker makes changes all the time. If an arena kept only the
  // pages that were in use at once, arenas would free pages that others' next batches fault in
  // again. So all batches that may be in flight, and the one just delivered, may keep pages.
  if (pace_.asked() && ring_.shared() && window_.block_bytes() == 0) {
    ring_.expect_in_use((window() + 1) * (counters.bytes.get() / counters.delivered.get()));
  }
  pace_.give(at);
}

// Frees the current entry, moves on from its position, which is returned, and posts new tickets.
Position Scheduler::leave_current() {
  const BatchEntry& entry = current();
  const Position at{entry.epoch, entry.base, entry.step};
  clear_current();
  moved_past(at);
  fill_ahead();
  return at;
}

void Scheduler::fail() {
  ring_.consumer().errors.add();  // workers add to this counter as well
  pace_.give_error();
  seek(position_, std::move(ahead_));
  held_ = true;  // make nothing until the consumer asks again, which may never happen
}

// ---- posting tickets ---------------------------------------------------------------------------

void Scheduler::fill() {
  undescribed_ = false;
  const bool posts = !held_ && !failed_ && !ring_.closed();
  if (posts) {
    reap();
    // Bytes of delivered batches go to holders that wait longer.
    if (window_.contended()) window_.hold(in_flight(), pace_.workers(), true);
    if (post_tickets() == Filled::kNoBytes) return;
  }
  window_.withdraw();
  const uint64_t left = in_flight();
  window_.hold(left, pace_.workers(), posts && (left != 0 || !exhausted()));
}

Scheduler::Filled Scheduler::post_tickets() {
  while (in_flight() < window_.most(pace_.queue(), pace_.workers())) {
    if (!next_to_post()) return Filled::kDone;
    // The ring may be full, or a withdrawn ticket occupies the place.
    if (!end_.can_post()) return Filled::kDone;
    if (!window_.take_one_more(in_flight(), pace_.workers())) return Filled::kNoBytes;
    switch (post()) {
      case Tickets::Described::kEnd:
        known_end_ = next_.step;
        break;
      case Tickets::Described::kNotYet:
        undescribed_ = true;
        return Filled::kDone;
      case Tickets::Described::kFailed:
        failed_ = true;
        return Filled::kDone;
      case Tickets::Described::kPosted:
        ++next_.step;
        break;
    }
  }
  return Filled::kDone;
}

// Moves next_ to a ticket that was not delivered, perhaps in the next epoch. False: there is none,
// or its epoch has not begun.
bool Scheduler::next_to_post() {
  for (;;) {
    // The position skips steps that were delivered ahead before a restore. So it may be further
    // than the next ticket to post, even in the next epoch.
    if (next_.epoch == position_.epoch) next_.step = std::max(next_.step, position_.step);
    if (ended(next_) || next_.epoch < position_.epoch) {
      if (options_.pause_at_epochs || !tickets_.steps(next_.epoch + 1, 0)) return false;
      if (next_.step == 0 && next_.base == 0) return false;  // an empty epoch would repeat forever
      next_ = {next_.epoch + 1, 0, 0};
    } else if (next_.epoch == position_.epoch && ahead_.contains(next_.step)) {
      ++next_.step;  // delivered before the state was saved
    } else {
      return true;
    }
  }
}

Tickets::Described Scheduler::post() {
  BatchEntry& entry = end_.next_entry();
  entry.epoch = next_.epoch;
  entry.base = next_.base;
  entry.step = next_.step;
  entry.version = version_;
  entry.owner = kAnyWorker;
  entry.stream = 0;
  entry.rows = 1;
  entry.rows_together = false;
  entry.input_offset = 0;
  const Tickets::Described described = tickets_.describe(next_, entry);
  if (described != Tickets::Described::kPosted) return described;
  entry.granules.store(window_.granules_of(entry.rows, pace_.queue(), pace_.workers()),
                       std::memory_order_relaxed);
  if (const uint64_t bytes = window_.block_bytes(); bytes != 0) {
    // Threads make a block with new pages themselves, side by side. Processes would have to ask.
    const bool threads = ring_.fd() < 0;
    if (void* space = threads ? arena_.allocate_without_faults(bytes) : arena_.allocate(bytes)) {
      entry.block_offset = arena_.region()->offset_of(space);
      entry.block_bytes = bytes;
    }
  }
  end_.publish(entry);
  return described;
}

void Scheduler::make_ahead() {
  const uint64_t before = in_flight();
  fill();
  if (in_flight() > before) end_.wake_workers(false);
}

void Scheduler::retire(uint64_t seq) {
  BatchEntry& entry = end_.own_entry(seq);
  end_.close_layout(seq);
  for (uint32_t g = 0, last = ring_.granules_at(seq); g < last; ++g) {
    Task& task = ring_.task_at(seq, g);
    if (task.kind != ResultKind::kNone) discard_(task);
    task.kind = ResultKind::kNone;
  }
  release_memory(entry);
  ring_.posted_at(seq).input_offset = 0;
  end_.clear(seq);
}

// An abandoned thread may still read the indices and write the rows of a tainted entry: both blocks
// stay allocated until the arena is destroyed.
void Scheduler::release_memory(BatchEntry& entry) {
  if (entry.tainted.load(std::memory_order_relaxed) == 0) {
    std::byte* base = arena_.region()->base();
    if (entry.input_offset != 0) StreamChunk::release(arena_, entry.input_offset);
    if (entry.block_bytes != 0) arena_.release(base + entry.block_offset);
  }
  entry.input_offset = 0;
  entry.block_bytes = 0;
}

// A ticket that was withdrawn while claimed keeps its memory and its place in the ring until its
// workers are done.
void Scheduler::reap() {
  std::erase_if(withdrawn_, [this](uint64_t seq) {
    if (!end_.withdraw(seq)) return false;
    retire(seq);
    return true;
  });
}

bool Scheduler::settle(int64_t timeout_ns) {
  reap();
  if (withdrawn_.empty()) return true;
  end_.wait_at_rest(withdrawn_.front(), timeout_ns);
  reap();
  return withdrawn_.empty();
}

void Scheduler::begin_epoch() {
  if (next_.epoch < position_.epoch) start_epoch_at(position_);
  held_ = false;
  fill_ahead();
}

void Scheduler::start_epoch_at(const Position& at) {
  next_ = at;
  failed_ = false;
  known_end_.reset();
  streams_ended_.clear();
}

void Scheduler::seek(const Position& to, std::set<uint64_t> ahead) {
  for (uint64_t seq = ring_.head(), end = ring_.posted(); seq < end; ++seq) {
    if (ring_.idle(seq)) continue;  // taken already
    if (end_.withdraw(seq)) {
      retire(seq);
    } else {
      withdrawn_.push_back(seq);
    }
  }
  taken_ = 0;
  end_.advance_head(ring_.posted());
  window_.withdraw();
  window_.hold(0, pace_.workers(), false);
  position_ = to;
  ahead_ = std::move(ahead);
  start_epoch_at(to);
}

}  // namespace penstock
