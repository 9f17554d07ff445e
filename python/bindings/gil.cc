#include "gil.h"

#include <unistd.h>

#include <utility>

#include "penstock/base/clock.h"
#include "penstock/base/os.h"

namespace penstock::python {

namespace {

constexpr int64_t kPatienceNs = 1'000'000;  // of a worker that gives way to the consumer
constexpr uint64_t kQuickNs = 100'000;
// A thread that waits for the GIL requests it after 5 ms without a release, and only then gets it.
// So a thread that releases and acquires the GIL more often can keep it for ever.
constexpr uint64_t kAttendNs = 20'000'000;

}  // namespace

void StayWhenEnded::wait_for_the_end() {
  for (;;) pause();
}

void GilHandover::have() {
  if (state_.exchange(kNobody, std::memory_order_seq_cst) == kWaitedFor) {
    os::futex_wake(state_, 1 << 20, false);
  }
}

void GilHandover::wait() {
  uint32_t state = kWanted;
  state_.compare_exchange_strong(state, kWaitedFor, std::memory_order_seq_cst);
  if (state != kNobody) os::futex_wait(state_, kWaitedFor, kPatienceNs, false);
}

void GilBreaks::attend() {
  if (unlooked_ > 0) {
    --unlooked_;
    return;
  }
  const uint64_t before = std::exchange(looked_ns_, now_ns());
  // For very fast elements, reading the clock would be a noticeable part of the time.
  if (looked_ns_ - before < kQuickNs) unlooked_ = 15;
  if (looked_ns_ - attended_ns_ < kAttendNs) return;
  { WithoutGil unlocked; }
  attended_ns_ = now_ns();
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

void look_for_signals() {
  const WithGil locked;
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

}  // namespace penstock::python
