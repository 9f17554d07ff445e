#include "penstock/pipeline/streams/cursor.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/parcel.h"
#include "penstock/pipeline/stages/restore_error.h"
#include "penstock/pipeline/streams/section.h"

namespace penstock {

class Cursor::Alone : public Context::Watch {
 public:
  explicit Alone(Cursor& cursor) : cursor_(cursor) {}
  bool progress(uint32_t, uint32_t) override {
    cursor_.attend();
    std::lock_guard lock(cursor_.mutex_);
    return !cursor_.closed_;
  }
  std::exception_ptr poisoned(uint32_t, uint32_t) override { return nullptr; }
  void threw(bool) override {}
  bool interrupted(const std::exception_ptr& by) override {
    if (!cursor_.options_.threaded) cursor_.interruption_ = by;
    return !cursor_.options_.threaded;
  }

 private:
  Cursor& cursor_;
};

Cursor::Shares Cursor::shares_of(uint64_t max_bytes, bool streams, bool sections) {
  if (max_bytes == UINT64_MAX) return {max_bytes, max_bytes, max_bytes, max_bytes};
  Shares shares{max_bytes, 0, 0, 0};
  if (sections) shares.sections = max_bytes / 2;
  if (streams) shares.cursor = (max_bytes - shares.sections) / 4;
  shares.feed = std::max<uint64_t>(max_bytes - shares.sections - shares.cursor, 1);
  return shares;
}

Cursor::Cursor(std::shared_ptr<const Plan> plan, const Options& options, Allocator& arena,
               std::function<void()> there)
    : plan_(std::move(plan)),
      options_(options),
      arena_(arena),
      there_(std::move(there)),
      memory_(options.max_bytes),
      watch_(std::make_unique<Alone>(*this)),
      context_{scratch_,         options.seed,     0,
               options.retries,  watch_.get(),     &clock_,
               &plan_->stages(), options.sections, options.skip,
               &memory_},
      gathered_(context_, *plan_->stream(), &arena, options.all_bytes) {
  scratch_.count_in(&memory_);
  if (options.sections != nullptr) {
    options.sections->budget().set_room([this] { return room_for_sections(); });
  }
  clock_.count_into(stages_);
}

Cursor::~Cursor() {
  close();
  drop(made_);
}

void Cursor::drop(std::deque<Made>& made) {
  for (const Made& parcel : made) {
    if (parcel.offset != 0) arena_.release(arena_.region()->base() + parcel.offset);
  }
  made.clear();
}

// Whether no further parcel is to be made before one is taken. With the lock.
bool Cursor::full() const {
  if (made_.size() >= options_.ahead) return true;
  if (!made_.empty()) return made_bytes_ + needed() > options_.max_bytes;
  if (wanted_) return false;
  const uint64_t sections = options_.sections == nullptr ? 0 : options_.sections->budget().bytes();
  return needed() + sections + feed_bytes() > options_.all_bytes;
}

// The largest one lately: each takes 1/16 off an older one.
void Cursor::learn(std::atomic<uint64_t>& most, uint64_t bytes) {
  const uint64_t before = most.load(std::memory_order_relaxed);
  most.store(std::max(bytes, before - before / 16), std::memory_order_relaxed);
}

// To make one more.
uint64_t Cursor::needed() const {
  return std::max(memory_.bytes(), in_hand_.load(std::memory_order_relaxed)) +
         most_bytes_.load(std::memory_order_relaxed);
}

// That a feed has at least: a batch and the parcel that it is made of.
uint64_t Cursor::feed_bytes() const {
  const uint64_t parcel = most_bytes_.load(std::memory_order_relaxed);
  return parcel + std::max(parcel, batch_bytes_.load(std::memory_order_relaxed));
}

// Of a parcel that is being gathered the size may be known before it is there.
uint64_t Cursor::room_for_sections() const {
  const uint64_t known = most_bytes_.load(std::memory_order_relaxed);
  const uint64_t parcel = std::max(known, gathered_.room_bytes()) - known;
  const uint64_t others =
      needed() + made_bytes_.load(std::memory_order_relaxed) + feed_bytes() + 3 * parcel;
  return others < options_.all_bytes ? options_.all_bytes - others : 0;
}

uint64_t Cursor::excess() const {
  const uint64_t needed = this->needed();
  const uint64_t over = options_.sections == nullptr ? 0 : options_.sections->budget().over();
  return over + (needed > options_.max_bytes ? needed - options_.max_bytes : 0);
}

void Cursor::saw_batch(uint64_t bytes) { learn(batch_bytes_, bytes); }

// With the lock.
void Cursor::keep(Made parcel) {
  made_bytes_ += parcel.bytes;
  if (parcel.rows != 0) learn(most_bytes_, parcel.bytes);
  made_.push_back(std::move(parcel));
  wanted_ = false;
}

void Cursor::start(uint64_t epoch, Place place) {
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

std::optional<Cursor::Made> Cursor::take() {
  std::unique_lock lock(mutex_);
  if (made_.empty() && !options_.threaded && !resting_ && !closed_) {
    std::optional<Start> begin = std::exchange(start_, std::nullopt);
    lock.unlock();
    Made parcel = read(begin);
    lock.lock();
    resting_ = parcel.end || parcel.failure.has_value();
    keep(std::move(parcel));
  }
  if (made_.empty()) {
    const bool first = !std::exchange(wanted_, true);
    lock.unlock();
    if (first) asked_.notify_one();
    return std::nullopt;
  }
  Made parcel = std::move(made_.front());
  made_.pop_front();
  made_bytes_ -= parcel.bytes;
  lock.unlock();
  asked_.notify_one();
  return parcel;
}

bool Cursor::ready() {
  std::lock_guard lock(mutex_);
  return !made_.empty() || closed_;
}

void Cursor::run() {
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
    Made parcel = read(begin);
    lock.lock();
    std::deque<Made> one;
    const bool last = parcel.end || parcel.failure.has_value();
    one.push_back(std::move(parcel));
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

void Cursor::close() {
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

void Cursor::let_go() {
  {
    std::lock_guard lock(mutex_);
    if (running_) return;
  }
  failed_.reset();
  reader_.reset();
  gathered_.let_go();
}

void Cursor::attend() {
  if (options_.threaded || options_.attend == nullptr) return;
  if (interruption_) std::rethrow_exception(interruption_);
  try {
    options_.attend();
  } catch (...) {
    interruption_ = std::current_exception();
    throw;
  }
}

// The next parcel, from where it is to begin or else behind the last one.
Cursor::Made Cursor::read(const std::optional<Start>& begin) {
  Made parcel;
  std::exception_ptr error;
  try {
    if (begin) go_to(*begin);
    parcel = make();
  } catch (...) {
    error = std::current_exception();
  }
  if (interruption_) {
    error = std::exchange(interruption_, nullptr);
    if (parcel.offset != 0) arena_.release(arena_.region()->base() + parcel.offset);
    parcel = {};
  }
  if (error) {
    parcel.before = begin ? begin->place : before_;
    parcel.failure = Failure{"stream", ordinal_, std::move(error)};
  }
  return parcel;
}

void Cursor::go_to(const Start& start) {
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
  const GatherParcel::Unused unused(gathered_);
  const GatherParcel::Gathered before = gathered_.gather(*reader_, so_many(place.used));
  if (before.failure) std::rethrow_exception(before.failure->error);
  if (before.rows < place.used) throw refuse_restore("it is beyond the stream's end");
  ordinal_ += before.rows;
}

GatherParcel::Wanted Cursor::so_many(uint64_t elements) const {
  return {elements, elements, ordinal_, GatherParcel::Failures::kEnd};
}

Cursor::Made Cursor::make() {
  if (failed_) return *std::exchange(failed_, std::nullopt);
  StageClock::Piece piece(clock_, parcels_, plan_->stream_stage());
  Made made;
  const uint64_t wanted = plan_->stream_rows();
  made.before = before_ = {ordinal_, 0, std::make_shared<State>(reader_->save())};
  scratch_.empty();
  GatherParcel::Gathered gathered;
  const GatherParcel::Unused unused(gathered_);
  try {
    gathered = gathered_.gather(*reader_, so_many(wanted));
  } catch (...) {
    made.failure = Failure{"stream", ordinal_, std::current_exception()};
    return made;
  }
  for (auto& lost : gathered.left_out) made.losses.push_back(std::move(lost.failure));
  // Of single elements those before a failure come first; a batch with one fails as a whole.
  const bool whole = plan_->batched() || plan_->per_output() != 1;
  if (gathered.failure && (whole || gathered.rows == 0)) {
    made.failure = std::move(gathered.failure);
    return made;
  }
  if (gathered.rows == 0 || (plan_->whole_outputs() && gathered.rows < wanted)) {
    made.end = true;
    gathered_.let_go();  // of the last chunk, too
    return made;
  }
  made.rows = gathered.rows;
  made.bytes = Parcel::bytes_of(gathered_);
  reader_->let_go();
  made.offset = Parcel::put(gathered_, ordinal_, arena_);
  in_hand_.store(memory_.bytes(), std::memory_order_relaxed);
  memory_.tight() ? scratch_.give_back() : scratch_.empty();
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
