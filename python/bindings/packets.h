#pragma once

#include <cstdint>

#include "codec.h"
#include "penstock/memory/allocator.h"
#include "penstock/workers/worker.h"

namespace penstock::python {

// How a worker process hands values over: encoded, in its unit, in a block of its arena, or, where
// that has no room, over its link. One thread, with the GIL.
class Packets {
 public:
  // `number`: of the arena, as the consumer knows it. All outlive this.
  Packets(Allocator& arena, uint32_t number, int link, Board& board, WorkerCounters& counters)
      : arena_(arena),
        number_(number),
        link_(link),
        board_(board),
        encoder_(arena, number, counters) {}

  // False: a Python exception is set, and nothing is held.
  bool encode(PyObject* value) { return encoder_.encode(value); }
  // Finishes the slot with what was encoded; `bytes` count in addition to its arrays'. Let go of
  // the value before, or its arrays are not handed over but shared. Waits without the GIL.
  void send(Slot& slot, ResultKind kind, uint64_t bytes);

 private:
  Allocator& arena_;
  uint32_t number_;
  int link_;
  Board& board_;
  Encoder encoder_;
};

}  // namespace penstock::python
