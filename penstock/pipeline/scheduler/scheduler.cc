#include "penstock/pipeline/scheduler/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"

namespace penstock {

Scheduler::Scheduler(TicketRing& ring, Allocator& arena, Tickets& tickets, const Options& options,
                     std::function<void(Task&)> discard)
    : ring_(ring),
      arena_(arena),
      tickets_(tickets),
      options_(options),
      discard_(std::move(discard)),
      queue_(options.queue),
      trace_(&ring.consumer_trace()) {
  if (!options_.tuning) return;
  // The tickets of a stream belong to one worker, which must not be parked.
  if (tickets_.streams() != 0) options_.tuning->workers = false;
  tuner_.emplace(*options_.tuning, Tuner::Settings{options_.workers, options_.queue});
}

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
    BatchEntry& entry = ring_.entry_at(seq);
    // A thread that close() did not wait for may still use the memory.
    const bool at_rest = ring_.withdraw(seq);
    if (!at_rest && ring_.fd() < 0) entry.tainted.store(1, std::memory_order_relaxed);
    release_memory(entry);
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
    if (ring_.entry_at(seq).epoch != position_.epoch) break;
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

// Called when the consumer asks for a batch: the time before this is the consumer's.
void Scheduler::read_clock_on_asking() {
  asked_ns_ = now_ns();
  ConsumerCounters& counters = ring_.consumer();
  if (given_ns_ == 0) {
    counters.first_ns.set(asked_ns_);
  } else {
    counters.busy_ns.add_single_writer(asked_ns_ - given_ns_);
    trace_.record(TraceKind::kConsumerBusy, given_ns_, asked_ns_, position_.epoch, position_.step);
    // For quicker batches the clock is read only once for several, because reading it would be a
    // noticeable part of the time. The batches in between were ready when the consumer asked.
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

// Passes the counters since the last call to the tuner, and applies its settings.
void Scheduler::tune() {
  const uint64_t delivered = ring_.consumer().delivered.get();
  uint64_t busy = 0;
  for (uint32_t w = 0; w < ring_.workers(); ++w) busy += ring_.place(w).counters.busy_ns.get();
  if (tuned_ns_ != 0) {
    // If one worker does all the work, the others are not idle for lack of tickets.
    const uint64_t times = ring_.one_worker_suffices() ? options_.workers : 1;
    const Tuner::Settings& to =
        tuner_->next({asked_ns_ - tuned_ns_, held_up_ns_, delivered - tuned_delivered_,
                      (busy - tuned_busy_ns_) * times, least_ready_, batch_bytes_});
    queue_.store(to.queue, std::memory_order_relaxed);
    if (to.workers != options_.workers) ring_.set_active(options_.workers = to.workers);
  }
  tuned_ns_ = asked_ns_;
  tuned_delivered_ = delivered;
  tuned_busy_ns_ = busy;
  held_up_ns_ = 0;
  least_ready_ = UINT32_MAX;
}

Scheduler::Poll Scheduler::poll(uint64_t epoch) {
  if (options_.describe_in_poll_only && asked_ns_ == 0) read_clock_on_asking();
  fill();
  auto there = asked_ns_ == 0 && quick_ && untimed_ + 1 < kUntimed ? candidate() : std::nullopt;
  if (there && ring_.ready(*there) && position_.epoch == epoch && !ended(position_)) {
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
  if (!seq || !ring_.ready(*seq)) {
    late_ = true;
    return Poll::kWait;
  }
  current_ = *seq;
  return Poll::kBatch;
}

void Scheduler::end_stream() {
  BatchEntry& entry = current();
  Position at{entry.epoch, entry.base, entry.step};
  streams_ended_.insert(entry.stream);
  if (streams_ended_.size() >= tickets_.streams()) {
    seek({at.epoch + 1, 0, 0});
    held_ = options_.pause_at_epochs;
    return;
  }
  clear_current();
  moved_past(at);
  fill_ahead();
}

void Scheduler::wait(int64_t timeout_ns) {
  uint64_t head = ring_.head();
  bool one = options_.ordered && head < ring_.posted();
  if (undescribed_) {
    ring_.consumer_wait(one ? head : TicketRing::kAnySeq, timeout_ns,
                        [this] { return tickets_.ready(); });
  } else {
    ring_.consumer_wait(one ? head : TicketRing::kAnySeq, timeout_ns);
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
  ring_.close_layout(current_);
  if (entry.block_bytes == 0) return {};
  std::byte* space = arena_.region()->base() + entry.block_offset;
  Lease lease = arena_.lease(space);
  if (!lease) {  // no memory for the lease's header
    uint64_t bytes = entry.block_bytes;
    fail();
    throw Error(Code::kOutOfMemory, "batch",
                "no space to lease a batch of " + std::to_string(bytes) + " bytes");
  }
  if (entry.rows >= block_rows_) {  // a short last batch does not predict the next ones
    block_rows_ = entry.rows;
    block_bytes_ = entry.needed_bytes;
  }
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
  ring_.advance_head(head);
}

void Scheduler::deliver(uint64_t bytes, uint64_t samples) {
  BatchEntry& entry = current();
  Position at{entry.epoch, entry.base, entry.step};
  batch_bytes_ = std::max(batch_bytes_, bytes);
  sized_ = true;
  // Threads share one arena: there it is better to wake the same thread again than another one.
  if (ring_.fd() >= 0) ring_.wake_first(ring_.task_at(current_, 0).worker);
  clear_current();
  moved_past(at);
  fill_ahead();
  // Workers are woken for a quarter of the ring. A tuned queue may be much shorter than that.
  const bool short_queue = options_.tuning && options_.tuning->queue;
  ring_.wake_workers(short_queue && current_ % std::max<uint64_t>(window() / 2, 1) == 0);

  ConsumerCounters& counters = ring_.consumer();
  counters.delivered.add_single_writer();
  counters.samples.add_single_writer(samples);
  counters.bytes.add_single_writer(bytes);
  if (asked_ns_ == 0) return;  // untimed
  // The number of batches that each worker makes changes all the time. If an arena kept only the
  // pages that were in use at once, arenas would free pages that others' next batches fault in
  // again. So all batches that may be in flight, and the one just delivered, may keep pages.
  if (ring_.fd() >= 0 && block_bytes_ == 0) {
    ring_.expect_in_use((window() + 1) * (counters.bytes.get() / counters.delivered.get()));
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

void Scheduler::skip() {
  BatchEntry& entry = current();
  Position at{entry.epoch, entry.base, entry.step};
  clear_current();
  moved_past(at);
  fill_ahead();
}

void Scheduler::fail() {
  ring_.consumer().errors.add();  // workers add to this counter as well
  given_ns_ = now_ns();
  asked_ns_ = 0;
  late_ = false;
  seek(position_, std::move(ahead_));
  held_ = true;  // make nothing until the consumer asks again, which may never happen
}

uint32_t Scheduler::depth() {
  uint32_t count = 0;
  for (uint64_t seq = ring_.head(), end = ring_.posted(); seq < end; ++seq) {
    count += ring_.ready(seq);
  }
  return count;
}

}  // namespace penstock
