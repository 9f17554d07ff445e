#include "penstock/pipeline/engine/feeds_hub.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/stages/stage.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kVersion = 1;
constexpr uint32_t kMaxConsumers = 4096;
constexpr auto kLookAgain = std::chrono::milliseconds(200);

// Seconds as text; short times with fractions.
std::string seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), ns < 100'000'000'000 ? "%.3g" : "%.0f",
                static_cast<double>(ns) / 1e9);
  return text;
}

std::string name_of_consumer(uint32_t consumer) { return "consumer " + std::to_string(consumer); }

}  // namespace

FeedsHub::FeedsHub(std::unique_ptr<Source> source, const Options& options)
    : options_(options), source_(std::move(source)) {
  if (options.consumers == 0 || options.consumers > kMaxConsumers) {
    throw Error(Code::kInvalidArgument, "feeds",
                std::to_string(options.consumers) + " consumers; give 1 to " +
                    std::to_string(kMaxConsumers));
  }
  // A wake-up that a consumer misses, because the hub's lock is not taken here, delays it by
  // kLookAgain. The lock may be held by a thread that waits for the caller (Python's lock).
  for (uint32_t c = 0; c < options.consumers; ++c) {
    consumers_.emplace_back(source_->budget(), [this] { changed_.notify_all(); });
  }
  place_ = source_->place();
}

FeedsHub::~FeedsHub() {
  try {
    close();
  } catch (...) {  // of the source
  }
}

template <class F>
void FeedsHub::alone(Lock& lock, F f) {
  pulling_ = true;
  lock.unlock();
  try {
    f();
  } catch (...) {
    lock.lock();
    pulling_ = false;
    changed_.notify_all();
    throw;
  }
  lock.lock();
  pulling_ = false;
  changed_.notify_all();
}

// ---- a consumer --------------------------------------------------------------------------------

void FeedsHub::check_open(const Consumer& me) const {
  if (closed_) throw Error(Code::kClosed, "feeds", "they were closed");
  if (me.closed) throw Error(Code::kClosed, "feeds", "this consumer was closed");
}

void FeedsHub::enter_next(Consumer& me) {
  ++me.pass;
  me.fresh = true;
  me.done = false;
}

void FeedsHub::begin(uint32_t consumer) {
  Lock lock(mutex_);
  Consumer& me = consumers_[consumer];
  check_open(me);
  me.thread = std::this_thread::get_id();
  if (me.fresh) return;
  if (!me.done) drop_queue(me, true);
  enter_next(me);
  changed_.notify_all();
}

FeedsHub::Next FeedsHub::next(uint32_t consumer, int64_t timeout_ns, Item& out) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout_ns);
  Lock lock(mutex_);
  Consumer& me = consumers_[consumer];
  me.thread = std::this_thread::get_id();
  check_open(me);
  if (me.done) {
    enter_next(me);
    changed_.notify_all();
  }
  for (;;) {
    check_open(me);
    if (me.pass == pass_ && !me.queue.empty()) {
      out = std::move(me.queue.front().item);
      me.queue.pop_front();
      --waiting_;
      me.bytes.give_back(out.bytes);
      ++me.counts.taken;
      me.fresh = false;
      me.blocked_since = 0;
      changed_.notify_all();
      return Next::kBatch;
    }
    if (me.pass == pass_ && over_) {
      me.done = true;
      me.fresh = false;
      me.blocked_since = 0;
      changed_.notify_all();
      if (failed_) raise_failure(lock, consumer);
      return Next::kEnd;
    }
    std::optional<uint32_t> blocking;
    if (!pulling_) {
      if (me.pass > pass_) {
        blocking = unfinished();
        if (!blocking) {
          begin_pass(lock);
          continue;
        }
      } else if (!begun_) {
        begin_pass(lock);
        continue;
      } else {
        Consumer& owner = consumers_[index_ % options_.consumers];
        const bool queued = &owner != &me && !owner.closed && owner.pass == pass_;
        if (!queued || take_space(owner)) {
          pull(lock, consumer, queued ? last_bytes_ : 0);
          continue;
        }
        blocking = slowest();
      }
    }
    if (blocking) {
      check_timeout(consumer, *blocking);
    } else {
      me.blocked_since = 0;
    }
    if (timeout_ns >= 0 && std::chrono::steady_clock::now() >= deadline) return Next::kWait;
    // Wakes up to check its own timeout.
    auto until = std::chrono::steady_clock::now() + kLookAgain;
    if (timeout_ns >= 0) until = std::min(until, deadline);
    changed_.wait_until(lock, until);
  }
}

// An open consumer for which the pass has not ended.
std::optional<uint32_t> FeedsHub::unfinished() const {
  for (uint32_t c = 0; c < options_.consumers; ++c) {
    if (!finished(consumers_[c])) return c;
  }
  return std::nullopt;
}

uint32_t FeedsHub::slowest() const {
  auto most = std::max_element(
      consumers_.begin(), consumers_.end(),
      [](const Consumer& a, const Consumer& b) { return a.queue.size() < b.queue.size(); });
  return static_cast<uint32_t>(most - consumers_.begin());
}

// Takes bytes for another batch in the owner's queue.
bool FeedsHub::take_space(Consumer& owner) {
  return waiting_ < options_.most && owner.bytes.take(last_bytes_);
}

// Counts a pulled batch, for which `taken` bytes were taken.
void FeedsHub::count(Consumer& owner, uint64_t taken, uint64_t bytes) {
  if (bytes > taken) owner.bytes.add(bytes - taken);
  if (bytes < taken) owner.bytes.give_back(taken - bytes);
  owner.bytes.withdraw();
}

void FeedsHub::check_timeout(uint32_t consumer, uint32_t blocking) {
  Consumer& me = consumers_[consumer];
  const Consumer& other = consumers_[blocking];
  const uint64_t now = now_ns();
  if (me.blocked_since == 0) me.blocked_since = now;
  const auto waited = static_cast<int64_t>(now - me.blocked_since);
  const bool own = other.thread == me.thread;
  const bool own_over = own && waited >= options_.own_patience_ns;
  if (!own_over && (options_.patience_ns < 0 || waited < options_.patience_ns)) return;
  me.blocked_since = 0;
  std::string text = name_of_consumer(consumer) + " waited " + seconds(waited) + " s for " +
                     name_of_consumer(blocking) + ", for which " +
                     std::to_string(other.queue.size()) + " batches wait; ";
  text += own ? "this thread used both: take from them in turn, or on a thread each"
              : "is its thread still at work? If it takes no more, close it";
  throw Error(Code::kTimeout, "feeds", text);
}

void FeedsHub::drop_queue(Consumer& c, bool count) {
  for (const Waiting& waiting : c.queue) {
    --waiting_;
    c.bytes.give_back(waiting.item.bytes);
    c.counts.dropped += count;
  }
  c.queue.clear();
}

void FeedsHub::close(uint32_t consumer) {
  Lock lock(mutex_);
  Consumer& me = consumers_[consumer];
  me.closed = true;
  drop_queue(me, true);
  me.bytes.withdraw();
  me.bytes.set_minimum(0);
  changed_.notify_all();
}

void FeedsHub::close() {
  {
    Lock lock(mutex_);
    closed_ = true;
    for (Consumer& c : consumers_) drop_queue(c, false);
    changed_.notify_all();
  }
  source_->close();
}

// ---- the engine --------------------------------------------------------------------------------

void FeedsHub::begin_pass(Lock& lock) {
  Place at;
  alone(lock, [&] {
    source_->begin_pass();
    at = source_->place();
  });
  place_ = std::move(at);
  over_ = false;
  failed_.reset();
  if (!std::exchange(resumed_, false)) {
    index_ = 0;
    skip_.clear();
  }
  if (std::exchange(begun_, true)) ++pass_;
}

// Pulls the next batch, for any consumer. `taken`: bytes taken for it.
void FeedsHub::pull(Lock& lock, uint32_t asking, uint64_t taken) {
  Pulled pulled;
  Place after;
  const uint64_t index = index_;
  auto owner = static_cast<uint32_t>(index % options_.consumers);
  Consumer& its = consumers_[owner];
  try {
    alone(lock, [&] {
      pulled = source_->pull();
      if (pulled.failure == nullptr) after = source_->place();
    });
  } catch (...) {
    count(its, taken, 0);
    throw;
  }
  const bool gone = its.closed || its.pass > pass_;
  const bool queued = pulled.item && !gone && !closed_ && !skip_.contains(index);
  count(its, taken, queued ? pulled.item->bytes : 0);
  if (pulled.failure != nullptr) {
    over_ = true;
    failed_ = {gone ? asking : owner, index, pulled.failure, std::move(pulled.text)};
    return;
  }
  Place before = std::exchange(place_, std::move(after));
  if (!pulled.item) {
    over_ = true;
    return;
  }
  ++index_;
  last_bytes_ = pulled.item->bytes;
  if (last_bytes_ > largest_) {
    largest_ = last_bytes_;
    for (Consumer& c : consumers_) c.bytes.set_minimum(c.closed ? 0 : largest_);
  }
  if (skip_.erase(index) != 0 || closed_) return;
  if (gone) {
    ++its.counts.dropped;
    return;
  }
  ++waiting_;
  its.queue.push_back({index, std::move(*pulled.item), std::move(before)});
}

void FeedsHub::raise_failure(Lock& lock, uint32_t consumer) {
  if (failed_->owner == consumer && failed_->error != nullptr) {
    std::exception_ptr error = std::exchange(failed_->error, nullptr);
    lock.unlock();
    std::rethrow_exception(error);
  }
  throw Error(Code::kClosed, "feeds",
              "batch " + std::to_string(failed_->index) + ", which is " +
                  name_of_consumer(failed_->owner) +
                  "'s, failed, and with it the pass for all: " + failed_->text);
}

FeedsHub::Place FeedsHub::place_at(LoaderState state, uint64_t rounds) {
  const bool front =
      state.batches == 0 && (rounds == kEndless ? state.epoch : state.epoch % rounds) == 0;
  return {std::move(state), front};
}

// ---- place -------------------------------------------------------------------------------------

std::string FeedsHub::state() {
  Lock lock(mutex_);
  const Waiting* lowest = nullptr;
  std::set<uint64_t> left;
  for (const Consumer& c : consumers_) {
    for (const Waiting& waiting : c.queue) {
      left.insert(waiting.index);
      if (lowest == nullptr || waiting.index < lowest->index) lowest = &waiting;
    }
  }
  const Place& place = lowest == nullptr ? place_ : lowest->place;
  uint64_t index = lowest == nullptr ? index_ : lowest->index;
  Json taken = Json::array();
  for (uint64_t i = index + 1; i < index_; ++i) {
    if (!left.contains(i)) taken.push_back(i);
  }
  for (uint64_t i : skip_) taken.push_back(i);
  if (lowest == nullptr && place.front) index = 0;
  return Json{{"version", kVersion},
              {"feeds", options_.consumers},
              {"index", index},
              {"taken", taken},
              {"plan", Json::parse(place.state.to_json())}}
      .dump();
}

void FeedsHub::restore(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  auto count = [](const Json& value) {
    if (!value.is_number_unsigned()) throw refuse_restore("this is no state of feeds");
    return value.get<uint64_t>();
  };
  if (!json.is_object() || !json.contains("feeds") || !json.contains("index") ||
      !json.contains("taken") || !json["taken"].is_array() || !json.contains("plan")) {
    throw refuse_restore("this is no state of feeds");
  }
  if (!json.contains("version") || json["version"] != kVersion) {
    throw refuse_restore("the state is of another version");
  }
  const uint64_t index = count(json["index"]);
  std::set<uint64_t> taken;
  for (const Json& item : json["taken"]) {
    if (count(item) < index) throw refuse_restore("'taken' names what cannot have been taken");
    taken.insert(item.get<uint64_t>());
  }
  const LoaderState plan = LoaderState::from_json(json["plan"].dump());
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !pulling_ || closed_; });
  if (closed_) throw Error(Code::kClosed, "feeds", "they were closed");
  Place at;
  alone(lock, [&] {
    source_->restore(plan);  // if it throws, nothing has changed
    at = source_->place();
  });
  place_ = std::move(at);
  index_ = index;
  skip_ = std::move(taken);
  begun_ = over_ = false;
  resumed_ = true;
  failed_.reset();
  for (Consumer& c : consumers_) {
    drop_queue(c, false);
    c.pass = pass_;
    c.fresh = true;
    c.done = false;
  }
  changed_.notify_all();
}

std::vector<FeedsHub::Counts> FeedsHub::counts() {
  Lock lock(mutex_);
  std::vector<Counts> all;
  for (const Consumer& c : consumers_) all.push_back(c.counts);
  return all;
}

}  // namespace penstock
