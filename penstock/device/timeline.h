#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "penstock/device/driver.h"
#include "penstock/observe/trace.h"

namespace penstock::device {

// When copies, waits and steps ran on a device, by its own clock: timed events of the driver, read
// back as trace events of the host's monotonic clock.
//
// The driver tells the time between two events as a float of milliseconds. So times are measured
// from a base event, which is renewed every 8 seconds: until then a float resolves 1 us. The base's
// time on the host is known when it is made. A renewed base passed after it was recorded and before
// it was seen to have passed: its time is kept within these bounds, so the two clocks do not drift
// apart.
//
// Nothing here throws, or waits for the device after the constructor: what can't be timed is left
// out. REQUIRED of all members but steps() and copies(): the device's context is current.
//
// Threads: mark() and add() any; read() one at a time; copies() and steps() any.
class Timeline {
 public:
  static constexpr uint64_t kRenewNs = 8'000'000'000;

  // `copies`: the stream of copies, which is idle. `renew_ns`: the age of a base that is renewed.
  Timeline(const Driver& driver, Stream copies, uint64_t renew_ns = kRenewNs);
  // Without end(): leaks the events, as in a forked child.
  ~Timeline() = default;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Records an event on a stream; null: the driver refused. REQUIRED: the stream captures nothing.
  Event mark(Stream stream) noexcept;
  // An event that can be timed, for the caller, who gives it back. Nothing may refer to it then.
  Result take(Event& event) noexcept;
  void give_back(Event event) noexcept;
  // A span between two events that have passed; owns the first. A null one leaves the span out.
  void record(TraceKind kind, Event begin, Event end, uint64_t batch) noexcept;
  // A span between two marks, which this then owns; a null one leaves the span out. `batch`: its
  // number.
  void add(TraceKind kind, Event begin, Event end, uint64_t batch) noexcept;
  // Reads spans whose end has passed.
  void read() noexcept;
  // Destroys all events. Later marks are null.
  void end() noexcept;

  std::vector<TraceEvent> copies() const { return events_of(*copies_); }
  std::vector<TraceEvent> steps() const { return events_of(*steps_); }  // and waits for copies

 private:
  struct Span {
    TraceKind kind;
    Event begin, end;
    uint64_t batch;
  };
  struct Lane {
    explicit Lane(TraceRing* ring) : writer(ring) {}
    TraceWriter writer;
    std::deque<Span> spans;  // not read yet
  };
  static constexpr size_t kMaxSpans = 256;  // of a lane that are not read yet

  Event take_idle() noexcept;
  void keep(Event event) noexcept;
  void write(TraceKind kind, Event begin, Event end, uint64_t batch) noexcept;
  Lane& lane_of(TraceKind kind) { return kind == TraceKind::kDeviceCopy ? copy_lane_ : step_lane_; }
  void renew_base() noexcept;
  void read(Lane& lane) noexcept;
  // The host's time of an event that has passed; 0: unknown.
  uint64_t time_of(Event event) const noexcept;

  const Driver& driver_;
  const Stream stream_;
  const uint64_t renew_ns_;
  const std::unique_ptr<TraceRing> copies_, steps_;

  std::mutex mutex_;  // of everything below
  Lane copy_lane_, step_lane_;
  std::vector<Event> idle_;
  Event base_ = nullptr;
  uint64_t base_ns_ = 0;       // of the host's clock, when the base passed
  Event next_base_ = nullptr;  // recorded, and not known to have passed
  uint64_t next_base_ns_ = 0;  // the host's clock before it was recorded
  bool ended_ = false;
};

}  // namespace penstock::device
