#include "penstock/device/timeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "penstock/base/clock.h"

namespace penstock::device {
namespace {

constexpr unsigned kTimed = 0;  // flags of an event
constexpr int kTries = 5;
constexpr uint64_t kCloseNs = 100'000;

}  // namespace

Timeline::Timeline(const Driver& driver, Stream copies, uint64_t renew_ns)
    : driver_(driver),
      stream_(copies),
      renew_ns_(renew_ns),
      copies_(std::make_unique<TraceRing>()),
      steps_(std::make_unique<TraceRing>()),
      copy_writer_(copies_.get()),
      step_writer_(steps_.get()) {
  if (take_idle(base_) != kSuccess) return;
  // It passes between two looks at the host's clock; again if the host was interrupted meanwhile.
  uint64_t before = 0, after = kCloseNs;
  for (int tries = 0; tries < kTries && after - before >= kCloseNs; ++tries) {
    before = now_ns();
    driver_.record_event(base_->event, stream_);
    driver_.synchronize_event(base_->event);
    after = now_ns();
  }
  base_ns_ = before + (after - before) / 2;
}

Result Timeline::take_idle(Mark*& mark) noexcept {
  if (!idle_.empty()) {
    mark = idle_.back();
    idle_.pop_back();
  } else {
    Event event = nullptr;
    mark = nullptr;
    const Result result = driver_.create_event(&event, kTimed);
    if (result != kSuccess) return result;
    mark = &marks_.emplace_back();
    mark->event = event;
  }
  mark->owners = 1;
  mark->ns = 0;
  return kSuccess;
}

// One owner less. After end() no pool is left, so the event is destroyed.
void Timeline::keep(Mark* mark) noexcept {
  if (mark == nullptr || --mark->owners > 0) return;
  if (ended_) {
    driver_.destroy_event(std::exchange(mark->event, nullptr));
  } else {
    idle_.push_back(mark);
  }
}

Result Timeline::take(Mark*& mark) noexcept {
  std::lock_guard lock(mutex_);
  return take_idle(mark);
}

Result Timeline::record(Mark& mark, Stream stream) noexcept {
  mark.ns = 0;
  return driver_.record_event(mark.event, stream);
}

Timeline::Mark* Timeline::mark(Stream stream) noexcept {
  std::lock_guard lock(mutex_);
  if (ended_ || base_ == nullptr) return nullptr;
  Mark* mark = nullptr;
  if (take_idle(mark) != kSuccess) return nullptr;
  if (driver_.record_event(mark->event, stream) == kSuccess) return mark;
  keep(mark);
  return nullptr;
}

Timeline::Mark* Timeline::share(Mark* mark) noexcept {
  std::lock_guard lock(mutex_);
  if (mark != nullptr) ++mark->owners;
  return mark;
}

void Timeline::drop(Mark* mark) noexcept {
  std::lock_guard lock(mutex_);
  keep(mark);
}

void Timeline::add_copy(Mark* begin, Mark& end, uint64_t batch) noexcept {
  std::lock_guard lock(mutex_);
  if (!ended_ && base_ != nullptr) {
    const uint64_t from = begin == nullptr ? 0 : time_of(*begin), to = time_of(end);
    if (from != 0 && to >= from) {
      copy_writer_.record(TraceKind::kDeviceCopy, from, to, 0, batch);
    }
    copied_[batch % copied_.size()] = {batch + 1, to};
  }
  keep(begin);
}

void Timeline::add_step(Mark* begin, Mark* end, uint64_t batch) noexcept {
  std::lock_guard lock(mutex_);
  if (begin == nullptr || end == nullptr || ended_ || unread_.size() >= kMaxSteps) {
    keep(begin);
    keep(end);
    return;
  }
  unread_.push_back({begin, end, batch});
}

void Timeline::read(size_t at_least) noexcept {
  std::lock_guard lock(mutex_);
  if (ended_ || base_ == nullptr) return;
  renew_base();
  if (unread_.size() < at_least) return;
  while (!unread_.empty()) {
    const auto [begin, end, batch] = unread_.front();
    const Copied& copied = copied_[batch % copied_.size()];
    if (copied.batches <= batch) return;  // its copy was not added yet
    if (look_at(*end) != kSuccess) return;
    unread_.pop_front();
    const uint64_t taken = time_of(*begin), to = time_of(*end);
    const uint64_t from = std::max(taken, copied.batches == batch + 1 ? copied.ns : 0);
    if (taken != 0 && to >= from) {
      if (from > taken) step_writer_.record(TraceKind::kDeviceWait, taken, from, 0, batch);
      step_writer_.record(TraceKind::kDeviceStep, from, to, 0, batch);
    }
    keep(begin);
    keep(end);
  }
}

void Timeline::renew_base() noexcept {
  const uint64_t now = now_ns();
  if (next_base_ != nullptr) {
    float ms = 0;
    if (driver_.query_event(next_base_->event) != kSuccess) return;
    if (driver_.elapsed_time(&ms, base_->event, next_base_->event) == kSuccess) {
      const uint64_t at = base_ns_ + static_cast<uint64_t>(std::llround(double{ms} * 1e6));
      base_ns_ = std::clamp(at, next_base_ns_, now);
      std::swap(base_, next_base_);
    }
    keep(next_base_);
    next_base_ = nullptr;
  } else if (now - base_ns_ > renew_ns_) {
    next_base_ns_ = now;
    if (take_idle(next_base_) != kSuccess) return;
    if (driver_.record_event(next_base_->event, stream_) != kSuccess) {
      keep(next_base_);
      next_base_ = nullptr;
    }
  }
}

Result Timeline::look(Mark& mark) noexcept {
  std::lock_guard lock(mutex_);
  return look_at(mark);
}

// Asking the driver for an event's time also says whether the event has passed.
Result Timeline::look_at(Mark& mark) const noexcept {
  if (mark.ns != 0) return kSuccess;
  float ms = 0;
  Result result = kInvalidValue;
  if (base_ != nullptr) result = driver_.elapsed_time(&ms, base_->event, mark.event);
  if (result == kNotReady) return result;
  if (result != kSuccess) return driver_.query_event(mark.event);  // it can't be timed
  mark.ns = static_cast<uint64_t>(static_cast<int64_t>(base_ns_) + std::llround(double{ms} * 1e6));
  return kSuccess;
}

uint64_t Timeline::time_of(Mark& mark) const noexcept {
  return look_at(mark) == kSuccess ? mark.ns : 0;
}

void Timeline::end() noexcept {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  ended_ = true;
  for (const Step& step : unread_) {
    keep(step.begin);
    keep(step.end);
  }
  unread_.clear();
  keep(base_);
  keep(next_base_);
  for (Mark* mark : idle_) driver_.destroy_event(mark->event);
  idle_.clear();
}

}  // namespace penstock::device
