#pragma once

#include <cstdint>
#include <memory>

#include "failures.h"
#include "numpy_api.h"
#include "packets.h"
#include "worker_times.h"

namespace penstock::python {

// Hands over the results of a PythonWorker: objects in the consumer's process, packets in another.
// One thread, with the GIL.
class ResultOutlet {
 public:
  struct Target {
    Allocator* arena = nullptr;  // of a worker process on the consumer's host
    uint32_t number = 0;
    int link = -1;
    bool remote = false;                                        // a worker process on another host
    bool packed() const { return arena != nullptr || remote; }  // otherwise: objects
  };
  // All arguments outlive this.
  ResultOutlet(const Target& target, TicketRing& ring, WorkerTimes& times)
      : target_(target), ring_(ring), times_(times) {}

  // Finishes the slot with the value. `more_bytes`: of the result, besides the value's arrays.
  // False: a Python exception is set, and the slot is not finished.
  bool hand_over(Slot& slot, ResultKind kind, Owned value, uint64_t more_bytes = 0);
  // Finishes the slot with the Python exception that is set.
  void fail(Slot& slot, FailurePlace place);
  // Takes back the memory of results that the consumer has released.
  void collect() {
    if (target_.arena != nullptr) target_.arena->collect();
  }

 private:
  void give(Slot& slot, ResultKind kind, Owned object, uint64_t bytes);
  bool pack(Slot& slot, ResultKind kind, Owned value, uint64_t more_bytes);

  const Target target_;
  TicketRing& ring_;
  WorkerTimes& times_;
  std::unique_ptr<Packets> packets_;  // made for the first result
};

}  // namespace penstock::python
