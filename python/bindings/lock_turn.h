#pragma once

#include <atomic>
#include <cstdint>

#include "penstock/base/os.h"

namespace penstock::python {

// Whose turn Python's lock is, between the consumer and the workers that are threads. A worker
// whose function lets go of the lock for an instant, as NumPy's do, wakes whoever wants it and has
// it back before that one runs, again and again for 5 ms; so between two tickets a worker asks
// here, and stays away until the consumer has it.
class LockTurn {
 public:
  // The consumer, without the lock, when it is about to take it; and when it has it.
  void want() { state_.store(kWanted, std::memory_order_seq_cst); }
  void have() {
    if (state_.exchange(kNobody, std::memory_order_seq_cst) == kWaitedFor) {
      os::futex_wake(state_, 1 << 20, false);
    }
  }

  // A worker.
  bool wanted() const { return state_.load(std::memory_order_relaxed) != kNobody; }
  // Without the lock: until the consumer has it, or something else keeps that from it.
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
