#pragma once

#include <atomic>
#include <cstdint>

#include "penstock/base/os.h"

namespace penstock::python {

// Lets the consumer acquire the GIL in competition with worker threads. A worker whose function
// releases the GIL for a moment, as NumPy's functions do, wakes a waiting thread but acquires the
// GIL again before that thread runs, for up to 5 ms. So between two tickets a worker checks this
// class, and waits until the consumer has the GIL.
class GilHandover {
 public:
  // Called by the consumer: before it acquires the GIL, and when it has it.
  void want() { state_.store(kWanted, std::memory_order_seq_cst); }
  void have() {
    if (state_.exchange(kNobody, std::memory_order_seq_cst) == kWaitedFor) {
      os::futex_wake(state_, 1 << 20, false);
    }
  }

  // Called by a worker.
  bool wanted() const { return state_.load(std::memory_order_relaxed) != kNobody; }
  // Without the GIL: waits until the consumer has it, or until a limit of time.
  void wait() {
    uint32_t state = kWanted;
    state_.compare_exchange_strong(state, kWaitedFor, std::memory_order_seq_cst);
    if (state != kNobody) os::futex_wait(state_, kWaitedFor, kPatienceNs, false);
  }

 private:
  static constexpr uint32_t kNobody = 0, kWanted = 1, kWaitedFor = 2;
  static constexpr int64_t kPatienceNs = 1'000'000;
  std::atomic<uint32_t> state_{kNobody};
};

}  // namespace penstock::python
