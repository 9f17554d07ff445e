#include "penstock/pipeline/engine/stream_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/stages/stream_chunk.h"
#include "penstock/pipeline/streams/parallel_map.h"

namespace penstock {

class StreamReader::Alone : public Context::Watch {
 public:
  explicit Alone(StreamReader& reader) : reader_(reader) {}
  bool progress(uint32_t, uint32_t) override {
    reader_.attend();
    std::lock_guard lock(reader_.mutex_);
    return !reader_.closed_;
  }
  std::exception_ptr poisoned(uint32_t, uint32_t) override { return nullptr; }
  void on_exception(bool) override {}
  bool interrupted(const std::exception_ptr& by) override {
    if (!reader_.options_.threaded) reader_.interruption_ = by;
    return !reader_.options_.threaded;
  }

 private:
  StreamReader& reader_;
};

StreamReader::Shares StreamReader::shares_of(uint64_t max_bytes, bool streams, bool parallel_maps) {
  if (max_bytes == UINT64_MAX) return {max_bytes, max_bytes, max_bytes, max_bytes};
  Shares shares{max_bytes, 0, 0, 0};
  if (parallel_maps) shares.parallel_maps = max_bytes / 2;
  if (streams) shares.reader = (max_bytes - shares.parallel_maps) / 4;
  shares.batches = std::max<uint64_t>(max_bytes - shares.parallel_maps - shares.reader, 1);
  return shares;
}

StreamReader::StreamReader(std::shared_ptr<const Plan> plan, const Options& options,
                           Allocator& arena, std::function<void()> there)
    : plan_(std::move(plan)),
      options_(options),
      arena_(arena),
      there_(std::move(there)),
      memory_(options.max_bytes),
      watch_(std::make_unique<Alone>(*this)),
      context_{scratch_,         options.seed,          0,
               options.retries,  watch_.get(),          &clock_,
               &plan_->stages(), options.parallel_maps, options.skip,
               &memory_},
      gathered_(context_, *plan_->stream(), &arena, options.all_bytes) {
  scratch_.count_in(&memory_);
  if (options.parallel_maps != nullptr) {
    options.parallel_maps->budget().set_space([this] { return space_for_parallel_maps(); });
  }
  clock_.count_into(stages_);
}

StreamReader::~StreamReader() {
  close();
  drop(made_);
}

void StreamReader::drop(std::deque<Made>& made) {
  for (const Made& stream_chunk : made) {
    if (stream_chunk.offset != 0) arena_.release(arena_.region()->base() + stream_chunk.offset);
  }
  made.clear();
}

// Whether a stream chunk must be taken before another one is made. With the lock.
bool StreamReader::full() const {
  if (made_.size() >= options_.ahead) return true;
  if (!made_.empty()) return made_bytes_ + needed() > options_.max_bytes;
  if (wanted_) return false;
  const uint64_t parallel_maps =
      options_.parallel_maps == nullptr ? 0 : options_.parallel_maps->budget().bytes();
  return needed() + parallel_maps + batches_bytes() > options_.all_bytes;
}

// A decaying maximum: each call reduces the old value by 1/16.
void StreamReader::learn(std::atomic<uint64_t>& most, uint64_t bytes) {
  const uint64_t before = most.load(std::memory_order_relaxed);
  most.store(std::max(bytes, before - before / 16), std::memory_order_relaxed);
}

// Bytes needed to make one more stream chunk.
uint64_t StreamReader::needed() const {
  return std::max(memory_.bytes(), in_hand_.load(std::memory_order_relaxed)) +
         most_bytes_.load(std::memory_order_relaxed);
}

// The minimum for batches: one batch and its stream chunk.
uint64_t StreamReader::batches_bytes() const {
  const uint64_t stream_chunk = most_bytes_.load(std::memory_order_relaxed);
  return stream_chunk + std::max(stream_chunk, batch_bytes_.load(std::memory_order_relaxed));
}

// Uses the size of the stream chunk being gathered if that is known already.
uint64_t StreamReader::space_for_parallel_maps() const {
  const uint64_t known = most_bytes_.load(std::memory_order_relaxed);
  const uint64_t stream_chunk = std::max(known, gathered_.space_bytes()) - known;
  const uint64_t others =
      needed() + made_bytes_.load(std::memory_order_relaxed) + batches_bytes() + 3 * stream_chunk;
  return others < options_.all_bytes ? options_.all_bytes - others : 0;
}

uint64_t StreamReader::excess() const {
  const uint64_t needed = this->needed();
  const uint64_t over =
      options_.parallel_maps == nullptr ? 0 : options_.parallel_maps->budget().over();
  return over + (needed > options_.max_bytes ? needed - options_.max_bytes : 0);
}

void StreamReader::report_batch_bytes(uint64_t bytes) { learn(batch_bytes_, bytes); }

// With the lock.
void StreamReader::keep(Made stream_chunk) {
  made_bytes_ += stream_chunk.bytes;
  if (stream_chunk.rows != 0) learn(most_bytes_, stream_chunk.bytes);
  made_.push_back(std::move(stream_chunk));
  wanted_ = false;
}

void StreamReader::start(uint64_t epoch, Place place) {
  std::deque<Made> dropped;
  {
    std::lock_guard lock(mutex_);
    ++turn_;
    start_ = Start{epoch, std::move(place)};
    resting_ = false;
    dropped.swap(made_);
    made_bytes_ = 0;
  }
  asked_.notify_one();
  drop(dropped);
}

std::optional<StreamReader::Made> StreamReader::take() {
  std::unique_lock lock(mutex_);
  if (made_.empty() && !options_.threaded && !resting_ && !closed_) {
    std::optional<Start> begin = std::exchange(start_, std::nullopt);
    lock.unlock();
    Made stream_chunk = read(begin);
    lock.lock();
    resting_ = stream_chunk.end || stream_chunk.failure.has_value();
    keep(std::move(stream_chunk));
  }
  if (made_.empty()) {
    const bool first = !std::exchange(wanted_, true);
    lock.unlock();
    if (first) asked_.notify_one();
    return std::nullopt;
  }
  Made stream_chunk = std::move(made_.front());
  made_.pop_front();
  made_bytes_ -= stream_chunk.bytes;
  lock.unlock();
  asked_.notify_one();
  return stream_chunk;
}

bool StreamReader::ready() {
  std::lock_guard lock(mutex_);
  return !made_.empty() || closed_;
}

void StreamReader::run() {
  std::unique_lock lock(mutex_);
  running_ = true;
  for (;;) {
    asked_.wait(lock, [&] { return closed_ || (!resting_ && (start_.has_value() || !full())); });
    if (closed_) {
      running_ = false;
      return;
    }
    std::optional<Start> begin = std::exchange(start_, std::nullopt);
    const uint64_t turn = turn_;
    lock.unlock();
    Made stream_chunk = read(begin);
    lock.lock();
    std::deque<Made> one;
    const bool last = stream_chunk.end || stream_chunk.failure.has_value();
    one.push_back(std::move(stream_chunk));
    if (turn != turn_ || closed_) {
      lock.unlock();
      drop(one);
      lock.lock();
      continue;
    }
    resting_ = last;
    keep(std::move(one.front()));
    lock.unlock();
    there_();
    lock.lock();
  }
}

void StreamReader::close() {
  std::deque<Made> dropped;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    dropped.swap(made_);
    made_bytes_ = 0;
  }
  drop(dropped);
  asked_.notify_all();
  there_();
}

void StreamReader::release() {
  {
    std::lock_guard lock(mutex_);
    if (running_) return;
  }
  failed_.reset();
  reader_.reset();
  gathered_.release();
}

void StreamReader::attend() {
  if (options_.threaded || options_.attend == nullptr) return;
  if (interruption_) std::rethrow_exception(interruption_);
  try {
    options_.attend();
  } catch (...) {
    interruption_ = std::current_exception();
    throw;
  }
}

// Makes the next stream chunk, at `begin` or else after the last one.
StreamReader::Made StreamReader::read(const std::optional<Start>& begin) {
  Made stream_chunk;
  std::exception_ptr error;
  try {
    if (begin) go_to(*begin);
    stream_chunk = make();
  } catch (...) {
    error = std::current_exception();
  }
  if (interruption_) {
    error = std::exchange(interruption_, nullptr);
    if (stream_chunk.offset != 0) arena_.release(arena_.region()->base() + stream_chunk.offset);
    stream_chunk = {};
  }
  if (error) {
    stream_chunk.before = begin ? begin->place : before_;
    stream_chunk.failure = Failure{"stream", ordinal_, std::move(error)};
  }
  return stream_chunk;
}

void StreamReader::go_to(const Start& start) {
  failed_.reset();
  if (reader_ == nullptr) reader_ = plan_->stream()->open(context_);
  const Place& place = start.place;
  ordinal_ = place.ordinal;
  if (place.state) {
    reader_->load(start.epoch, *place.state);
  } else {
    reader_->begin(start.epoch);
  }
  if (place.used == 0) return;
  scratch_.empty();
  const GatherChunk::Unused unused(gathered_);
  const GatherChunk::Gathered before = gathered_.gather(*reader_, rows_to_pull(place.used));
  if (before.failure) std::rethrow_exception(before.failure->error);
  if (before.rows < place.used) throw refuse_restore("it is beyond the stream's end");
  ordinal_ += before.rows;
}

GatherChunk::Wanted StreamReader::rows_to_pull(uint64_t elements) const {
  return {elements, elements, ordinal_, GatherChunk::Failures::kEnd};
}

StreamReader::Made StreamReader::make() {
  if (failed_) return *std::exchange(failed_, std::nullopt);
  StageClock::Piece piece(clock_, stream_chunks_, plan_->stream_stage());
  Made made;
  const uint64_t wanted = plan_->stream_rows();
  made.before = before_ = {ordinal_, 0, std::make_shared<State>(reader_->save())};
  scratch_.empty();
  GatherChunk::Gathered gathered;
  const GatherChunk::Unused unused(gathered_);
  try {
    gathered = gathered_.gather(*reader_, rows_to_pull(wanted));
  } catch (...) {
    made.failure = Failure{"stream", ordinal_, std::current_exception()};
    return made;
  }
  for (auto& lost : gathered.left_out) made.losses.push_back(std::move(lost.failure));
  // Single elements before a failure are delivered first; a batch with a failure fails as a whole.
  const bool whole = plan_->batched() || plan_->per_output() != 1;
  if (gathered.failure && (whole || gathered.rows == 0)) {
    made.failure = std::move(gathered.failure);
    return made;
  }
  if (gathered.rows == 0 || (plan_->drop_partial() && gathered.rows < wanted)) {
    made.end = true;
    gathered_.release();  // also the failures of the last chunk
    return made;
  }
  made.rows = gathered.rows;
  made.bytes = StreamChunk::bytes_of(gathered_);
  reader_->release();
  made.offset = StreamChunk::put(gathered_, ordinal_, arena_);
  in_hand_.store(memory_.bytes(), std::memory_order_relaxed);
  memory_.tight() ? scratch_.free_all() : scratch_.empty();
  ordinal_ += gathered.rows;
  if (gathered.failure) {
    made.after = {made.before.ordinal, made.rows, made.before.state};
    failed_ = Made();
    failed_->before = made.after;
    failed_->failure = std::move(gathered.failure);
  } else {
    made.after = {ordinal_, 0, std::make_shared<State>(reader_->save())};
  }
  return made;
}

}  // namespace penstock
