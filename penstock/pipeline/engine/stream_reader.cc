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

StreamReader::StreamReader(std::shared_ptr<const Plan> plan, const Options& options,
                           Allocator& arena, ByteBudget& budget, std::function<void()> there)
    : plan_(std::move(plan)),
      options_(options),
      arena_(arena),
      there_(std::move(there)),
      holder_(budget, [this] { wake(); }),
      first_ticket_(budget, nullptr),
      // Elements of parallel maps, which are not in memory_, are pulled along with the others.
      memory_(options.parallel_maps == nullptr ? budget.total() : budget.total() / 2, &holder_),
      watch_(std::make_unique<Alone>(*this)),
      context_{scratch_,         options.seed,          0,
               options.retries,  watch_.get(),          &clock_,
               &plan_->stages(), options.parallel_maps, options.skip,
               &memory_},
      gathered_(context_, *plan_->stream(), &arena, budget.total(),
                [this](uint64_t bytes) { expect(std::max(bytes, chunk_bytes_)); }) {
  scratch_.count_in(&memory_);
  if (options.parallel_maps != nullptr) {
    options.parallel_maps->set_wake([this] { wake(); });
  }
  clock_.count_into(stages_);
}

StreamReader::~StreamReader() {
  close();
  reader_.reset();  // the budget may call wake() for its parallel maps
  holder_.withdraw();
}

// Without the lock.
void StreamReader::drop(std::deque<Made>& made) {
  uint64_t bytes = 0;
  for (const Made& stream_chunk : made) {
    bytes += stream_chunk.bytes;
    if (stream_chunk.offset != 0) StreamChunk::release(arena_, stream_chunk.offset);
  }
  made.clear();
  if (bytes != 0) holder_.give_back(bytes);
}

// ---- bytes -------------------------------------------------------------------------------------

// Whether another stream chunk may be made now. If none waits for take(), it always may, however
// much memory the stages have. With the lock.
bool StreamReader::may_make() {
  if (taken_) return true;
  if (made_.size() >= options_.ahead) return false;
  if (made_.empty()) {
    holder_.add(chunk_bytes_);
  } else if (!holder_.take(chunk_bytes_)) {
    return false;
  }
  taken_ = chunk_bytes_;
  return true;
}

// The estimate for the next stream chunks; one of them is the minimum. On the thread that reads,
// without the lock.
void StreamReader::expect(uint64_t bytes) {
  chunk_bytes_ = bytes;
  holder_.set_minimum(input_bytes_ + chunk_bytes_);
  memory_.saw_element(bytes / plan_->stream_rows());
  if (first_) first_ticket_.set_minimum(2 * chunk_bytes_);
}

// A stream chunk was made, for which `taken` bytes were taken. As expect().
void StreamReader::count(uint64_t taken, const Made& stream_chunk) {
  const uint64_t bytes = stream_chunk.bytes;
  if (stream_chunk.rows != 0) {
    expect(std::max(bytes, chunk_bytes_ - chunk_bytes_ / 16));
    first_ = false;
  }
  if (bytes > taken) holder_.add(bytes - taken);
  if (bytes < taken) holder_.give_back(taken - bytes);
}

// There may be bytes for a stream chunk, or for elements of parallel maps. Any thread.
void StreamReader::wake() {
  { const std::lock_guard lock(mutex_); }
  asked_.notify_one();
}

// ---- stream chunks -----------------------------------------------------------------------------

void StreamReader::start(uint64_t epoch, Place place) {
  std::deque<Made> dropped;
  {
    std::lock_guard lock(mutex_);
    ++turn_;
    start_ = Start{epoch, std::move(place)};
    resting_ = false;
    dropped.swap(made_);
  }
  drop(dropped);
  wake();
}

std::optional<StreamReader::Made> StreamReader::take() {
  std::unique_lock lock(mutex_);
  if (made_.empty() && !options_.threaded && !resting_ && !closed_) {
    std::optional<Start> begin = std::exchange(start_, std::nullopt);
    lock.unlock();
    Made stream_chunk = read(begin);
    count(0, stream_chunk);
    lock.lock();
    resting_ = stream_chunk.end || stream_chunk.failure.has_value();
    made_.push_back(std::move(stream_chunk));
  }
  if (made_.empty()) return std::nullopt;
  Made stream_chunk = std::move(made_.front());
  made_.pop_front();
  lock.unlock();
  if (stream_chunk.rows != 0 && !std::exchange(took_, true)) first_ticket_.set_minimum(0);
  // The bytes count for the ticket from now on.
  if (stream_chunk.bytes != 0) holder_.give_back(stream_chunk.bytes);
  wake();
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
    const auto granted = [&] {
      return !start_ && options_.parallel_maps != nullptr && options_.parallel_maps->granted();
    };
    asked_.wait(lock, [&] { return closed_ || (!resting_ && (may_make() || granted())); });
    if (closed_) {
      running_ = false;
      return;
    }
    if (!taken_) {
      lock.unlock();
      StageClock::Piece piece(clock_, stream_chunks_, plan_->stream_stage());
      options_.parallel_maps->use_grants();
      lock.lock();
      continue;
    }
    const uint64_t taken = *std::exchange(taken_, std::nullopt);
    std::optional<Start> begin = std::exchange(start_, std::nullopt);
    const uint64_t turn = turn_;
    lock.unlock();
    Made stream_chunk = read(begin);
    count(taken, stream_chunk);
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
    made_.push_back(std::move(one.front()));
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
    if (stream_chunk.offset != 0) StreamChunk::release(arena_, stream_chunk.offset);
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
  input_bytes_ = std::max(memory_.take_peak(), input_bytes_ - input_bytes_ / 16);
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
