#pragma once

#include <array>
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
// The driver gives the time between two events as a float of milliseconds. So times are measured
// from a base event, which is renewed every 8 seconds: until then a float resolves 1 us. The base's
// time on the host is known when it is made. A renewed base passed after it was recorded and before
// it was seen to have passed: its time is kept within these bounds, so the two clocks do not drift
// apart.
//
// Nothing here throws, or waits for the device after the constructor: what can't be timed is left
// out. REQUIRED of all members but steps() and copies(): the device's context is current.
//
// Threads: any; read() one at a time.
class Timeline {
 public:
  static constexpr uint64_t kRenewNs = 8'000'000'000;

  // An event that can be timed, and has as many owners as spans that it bounds.
  struct Mark {
    Event event = nullptr;

   private:
    friend class Timeline;
    int owners = 0;
    uint64_t ns = 0;  // the host's time when it passed; 0: not read yet
  };

  // `copies`: the stream of copies, which is idle. `renew_ns`: the age of a base that is renewed.
  Timeline(const Driver& driver, Stream copies, uint64_t renew_ns = kRenewNs);
  // Without end(): leaks the events, as in a forked child.
  ~Timeline() = default;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // A mark that was not recorded yet, with one owner; null if the driver refused.
  Result take(Mark*& mark) noexcept;
  // Records it on a stream, again if it has passed. REQUIRED: the stream captures nothing, and the
  // mark has one owner.
  Result record(Mark& mark, Stream stream) noexcept;
  // A recorded mark, with one owner; null: the driver refused.
  Mark* mark(Stream stream) noexcept;
  // Whether a recorded mark has passed: kSuccess, kNotReady, or the driver's error. Keeps its time,
  // so that it is asked for once.
  Result look(Mark& mark) noexcept;
  // One more owner; null stays null.
  Mark* share(Mark* mark) noexcept;
  // Ends an owner's share. The mark may be null.
  void drop(Mark* mark) noexcept;

  // The copy of a batch, between two marks that have passed; owns the first. A null one leaves it
  // out.
  void add_copy(Mark* begin, Mark& end, uint64_t batch) noexcept;
  // The step of a batch, between two marks that this then owns; null ones leave it out. The time
  // from `begin` to the end of the batch's copy is a wait. add_copy() comes first.
  void add_step(Mark* begin, Mark* end, uint64_t batch) noexcept;
  // Reads steps whose end has passed, if at least so many were added since they were read: few
  // calls then find a step that has not ended.
  void read(size_t at_least = 1) noexcept;
  // Destroys all events. Later marks are null.
  void end() noexcept;

  std::vector<TraceEvent> copies() const { return events_of(*copies_); }
  std::vector<TraceEvent> steps() const { return events_of(*steps_); }  // and waits for copies

 private:
  struct Step {
    Mark *begin, *end;
    uint64_t batch;
  };
  struct Copied {
    uint64_t batches = 0;  // up to this one
    uint64_t ns = 0;       // when its copy ended; 0: unknown
  };
  static constexpr size_t kMaxSteps = 256;  // that are not read yet

  Result take_idle(Mark*& mark) noexcept;
  void keep(Mark* mark) noexcept;
  void renew_base() noexcept;
  Result look_at(Mark& mark) const noexcept;
  // The host's time of a mark that has passed; 0: unknown.
  uint64_t time_of(Mark& mark) const noexcept;

  const Driver& driver_;
  const Stream stream_;
  const uint64_t renew_ns_;
  const std::unique_ptr<TraceRing> copies_, steps_;

  std::mutex mutex_;  // of everything below
  TraceWriter copy_writer_, step_writer_;
  std::deque<Step> unread_;
  std::array<Copied, 2 * kMaxSteps> copied_;  // by the batch's number
  std::deque<Mark> marks_;                    // all
  std::vector<Mark*> idle_;
  Mark* base_ = nullptr;
  uint64_t base_ns_ = 0;       // of the host's clock, when the base passed
  Mark* next_base_ = nullptr;  // recorded, and not known to have passed
  uint64_t next_base_ns_ = 0;  // the host's clock before it was recorded
  bool ended_ = false;
};

}  // namespace penstock::device
