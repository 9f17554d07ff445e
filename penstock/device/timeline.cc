#include "penstock/device/timeline.h"

#include <algorithm>
#include <cmath>

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
      copy_lane_(copies_.get()),
      step_lane_(steps_.get()) {
  base_ = take_idle();
  if (base_ == nullptr) return;
  // It passes between two looks at the host's clock; again if the host was interrupted meanwhile.
  uint64_t before = 0, after = kCloseNs;
  for (int tries = 0; tries < kTries && after - before >= kCloseNs; ++tries) {
    before = now_ns();
    driver_.record_event(base_, stream_);
    driver_.synchronize_event(base_);
    after = now_ns();
  }
  base_ns_ = before + (after - before) / 2;
}

Event Timeline::take_idle() noexcept {
  if (!idle_.empty()) {
    Event event = idle_.back();
    idle_.pop_back();
    return event;
  }
  Event event = nullptr;
  return driver_.create_event(&event, kTimed) == kSuccess ? event : nullptr;
}

// After end() no pool is left, so it is destroyed.
void Timeline::keep(Event event) noexcept {
  if (event == nullptr) return;
  if (ended_) {
    driver_.destroy_event(event);
  } else {
    idle_.push_back(event);
  }
}

Result Timeline::take(Event& event) noexcept {
  std::lock_guard lock(mutex_);
  if (!idle_.empty()) {
    event = idle_.back();
    idle_.pop_back();
    return kSuccess;
  }
  return driver_.create_event(&event, kTimed);
}

void Timeline::give_back(Event event) noexcept {
  std::lock_guard lock(mutex_);
  keep(event);
}

void Timeline::record(TraceKind kind, Event begin, Event end, uint64_t batch) noexcept {
  std::lock_guard lock(mutex_);
  if (begin == nullptr) return;
  if (!ended_) write(kind, begin, end, batch);
  keep(begin);
}

void Timeline::write(TraceKind kind, Event begin, Event end, uint64_t batch) noexcept {
  const uint64_t from = time_of(begin), to = time_of(end);
  if (from != 0 && to >= from) lane_of(kind).writer.record(kind, from, to, 0, batch);
}

Event Timeline::mark(Stream stream) noexcept {
  std::lock_guard lock(mutex_);
  if (ended_ || base_ == nullptr) return nullptr;
  Event event = take_idle();
  if (event != nullptr && driver_.record_event(event, stream) != kSuccess) {
    keep(event);
    return nullptr;
  }
  return event;
}

void Timeline::add(TraceKind kind, Event begin, Event end, uint64_t batch) noexcept {
  std::lock_guard lock(mutex_);
  Lane& lane = lane_of(kind);
  if (begin == nullptr || end == nullptr || ended_ || lane.spans.size() >= kMaxSpans) {
    keep(begin);
    if (end != begin) keep(end);
    return;
  }
  lane.spans.push_back({kind, begin, end, batch});
}

void Timeline::read() noexcept {
  std::lock_guard lock(mutex_);
  if (ended_ || base_ == nullptr) return;
  renew_base();
  read(copy_lane_);
  read(step_lane_);
}

void Timeline::renew_base() noexcept {
  const uint64_t now = now_ns();
  if (next_base_ != nullptr) {
    float ms = 0;
    if (driver_.query_event(next_base_) != kSuccess) return;
    if (driver_.elapsed_time(&ms, base_, next_base_) == kSuccess) {
      const uint64_t at = base_ns_ + static_cast<uint64_t>(std::llround(double{ms} * 1e6));
      base_ns_ = std::clamp(at, next_base_ns_, now);
      std::swap(base_, next_base_);
    }
    keep(next_base_);
    next_base_ = nullptr;
  } else if (now - base_ns_ > renew_ns_) {
    next_base_ = take_idle();
    next_base_ns_ = now;
    if (next_base_ != nullptr && driver_.record_event(next_base_, stream_) != kSuccess) {
      keep(next_base_);
      next_base_ = nullptr;
    }
  }
}

uint64_t Timeline::time_of(Event event) const noexcept {
  float ms = 0;
  if (driver_.elapsed_time(&ms, base_, event) != kSuccess) return 0;
  return static_cast<uint64_t>(static_cast<int64_t>(base_ns_) + std::llround(double{ms} * 1e6));
}

void Timeline::read(Lane& lane) noexcept {
  while (!lane.spans.empty()) {
    const Span span = lane.spans.front();
    if (driver_.query_event(span.end) != kSuccess) return;
    lane.spans.pop_front();
    write(span.kind, span.begin, span.end, span.batch);
    keep(span.begin);
    keep(span.end);
  }
}

void Timeline::end() noexcept {
  std::lock_guard lock(mutex_);
  if (ended_) return;
  ended_ = true;
  for (Lane* lane : {&copy_lane_, &step_lane_}) {
    for (const Span& span : lane->spans) {
      keep(span.begin);
      keep(span.end);
    }
    lane->spans.clear();
  }
  keep(base_);
  keep(next_base_);
  for (Event event : idle_) driver_.destroy_event(event);
  idle_.clear();
}

}  // namespace penstock::device
