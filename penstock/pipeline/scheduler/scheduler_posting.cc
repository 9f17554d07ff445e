// The scheduler: posts tickets, bounds how many are in flight, and withdraws them.
#include <algorithm>
#include <utility>

#include "penstock/pipeline/scheduler/granules.h"
#include "penstock/pipeline/scheduler/scheduler.h"

namespace penstock {

uint64_t Scheduler::window() const {
  uint64_t most = queue() + options_.workers;
  // The size of a batch is unknown at first: one batch per worker is allowed.
  if (!sized_ && options_.max_bytes != UINT64_MAX) {
    most = std::min<uint64_t>(most, std::max(options_.workers, 1u));
  }
  // A ticket's input may use memory before the batch does.
  const uint64_t input = tickets_.input_bytes();
  const uint64_t batch = sized_ ? batch_bytes_ : input, bytes = input + batch;
  if (bytes != 0) {
    // At least least(), by default 1: the lowest undelivered ticket always gets its slot.
    const uint64_t left = options_.max_bytes - std::min(options_.max_bytes, tickets_.spent_bytes());
    most = std::min(most, std::max<uint64_t>(fitting(left, bytes, tickets_.work_bytes(batch)),
                                             tickets_.least()));
  }
  return most;
}

// The number of batches that fit into `left` bytes. Each worker makes one at a time, for which it
// needs `work` additional bytes.
uint64_t Scheduler::fitting(uint64_t left, uint64_t bytes, uint64_t work) const {
  const uint64_t workers = std::max(options_.workers, 1u);
  const uint64_t made = left / (bytes + work);
  return made < workers ? made : (left - workers * work) / bytes;
}

uint32_t Scheduler::granules_of(uint32_t rows) const {
  if (options_.granule_rows != 0) {
    const uint32_t share = options_.granule_rows;
    return std::clamp((rows + share - 1) / share, 1u, ring_.granules());
  }
  if (ring_.granules() == 1 || !tickets_.divisible()) return 1;
  BatchDivision of{rows, ring_.active(), window(), ring_.head() == ring_.posted()};
  if (!of.first && of.window >= of.workers) return 1;  // the usual case
  of.row_ns = row_ns();
  of.most = ring_.granules();
  return granules_for(of);
}

uint64_t Scheduler::row_ns() const {
  uint64_t busy_ns = 0, rows = 0;
  for (uint32_t w = 0; w < ring_.workers(); ++w) {
    const WorkerCounters& counters = ring_.place(w).counters;
    busy_ns += counters.busy_ns.get();
    rows += counters.samples.get();
  }
  return rows == 0 ? 0 : std::max<uint64_t>(busy_ns / rows, 1);
}

void Scheduler::fill() {
  undescribed_ = false;
  if (held_ || failed_ || ring_.closed()) return;
  reap();
  for (uint64_t most = window(); in_flight() < most; most = sized_ ? most : window()) {
    // The position skips steps that were delivered ahead before a restore. So it may be further
    // than the next ticket to post, even in the next epoch.
    if (next_.epoch == position_.epoch) next_.step = std::max(next_.step, position_.step);
    if (ended(next_) || next_.epoch < position_.epoch) {
      if (options_.pause_at_epochs || !tickets_.steps(next_.epoch + 1, 0)) return;
      if (next_.step == 0 && next_.base == 0) return;  // an empty epoch would repeat forever
      next_ = {next_.epoch + 1, 0, 0};
      continue;
    }
    if (next_.epoch == position_.epoch && ahead_.contains(next_.step)) {
      ++next_.step;  // delivered before the state was saved
      continue;
    }
    if (!ring_.can_post()) return;  // the ring is full, or a withdrawn ticket occupies the place
    BatchEntry& entry = ring_.next_entry();
    entry.epoch = next_.epoch;
    entry.base = next_.base;
    entry.step = next_.step;
    entry.version = version_;
    entry.owner = kAnyWorker;
    entry.stream = 0;
    entry.rows = 1;
    entry.rows_together = false;
    entry.input_offset = 0;
    switch (tickets_.describe(next_, entry)) {
      case Tickets::Described::kEnd:
        known_end_ = next_.step;
        continue;
      case Tickets::Described::kNotYet:
        undescribed_ = true;
        return;
      case Tickets::Described::kFailed:
        failed_ = true;
        return;
      case Tickets::Described::kPosted:
        break;
    }
    entry.granules.store(granules_of(entry.rows), std::memory_order_relaxed);
    if (block_bytes_ != 0) {
      if (void* space = arena_.allocate(block_bytes_)) {
        entry.block_offset = arena_.region()->offset_of(space);
        entry.block_bytes = block_bytes_;
      }
    }
    ring_.publish(entry);
    ++next_.step;
  }
}

void Scheduler::make_ahead() {
  const uint64_t before = in_flight();
  fill();
  if (in_flight() > before) ring_.wake_workers(false);
}

void Scheduler::retire(uint64_t seq) {
  BatchEntry& entry = ring_.entry_at(seq);
  ring_.close_layout(seq);
  for (uint32_t g = 0, last = ring_.granules_at(seq); g < last; ++g) {
    Task& task = ring_.task_at(seq, g);
    if (task.kind != ResultKind::kNone) discard_(task);
    task.kind = ResultKind::kNone;
  }
  release_memory(entry);
  ring_.clear(seq);
}

// An abandoned thread may still read the indices and write the rows of a tainted entry: both blocks
// stay allocated until the arena is destroyed.
void Scheduler::release_memory(BatchEntry& entry) {
  if (entry.tainted.load(std::memory_order_relaxed) == 0) {
    std::byte* base = arena_.region()->base();
    if (entry.input_offset != 0) arena_.release(base + entry.input_offset);
    if (entry.block_bytes != 0) arena_.release(base + entry.block_offset);
  }
  entry.input_offset = 0;
  entry.block_bytes = 0;
}

// A ticket that was withdrawn while claimed keeps its memory and its place in the ring until its
// workers are done.
void Scheduler::reap() {
  std::erase_if(withdrawn_, [this](uint64_t seq) {
    if (!ring_.withdraw(seq)) return false;
    retire(seq);
    return true;
  });
}

bool Scheduler::settle(int64_t timeout_ns) {
  reap();
  if (withdrawn_.empty()) return true;
  ring_.consumer_wait_at_rest(withdrawn_.front(), timeout_ns);
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
    if (ring_.withdraw(seq)) {
      retire(seq);
    } else {
      withdrawn_.push_back(seq);
    }
  }
  taken_ = 0;
  ring_.advance_head(ring_.posted());
  position_ = to;
  ahead_ = std::move(ahead);
  start_epoch_at(to);
}

}  // namespace penstock
