#pragma once

#include <cstdint>

#include "codec.h"
#include "penstock/memory/allocator.h"
#include "penstock/workers/remote_service.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock::python {

// Hands over the values of a worker process, encoded: in the task, in a block of the worker's
// arena, or, if neither has space, over the link. On another host: in the task, or as a
// RemotePacket. One thread, with the GIL.
class Packets {
 public:
  // On another host than the consumer: results are sent by a RemoteService.
  Packets(TicketRing& ring, WorkerCounters& counters)
      : ring_(ring), encoder_(Encoder::Tailed::kRemote, counters) {}
  // `number`: the arena's number (LinkMessage::kArena). All arguments outlive this.
  Packets(Allocator& arena, uint32_t number, int link, TicketRing& ring, WorkerCounters& counters)
      : arena_(&arena),
        number_(number),
        link_(link),
        ring_(ring),
        encoder_(arena, number, counters) {}

  // False: a Python exception is set, and nothing is held.
  bool encode(PyObject* value) { return encoder_.encode(value); }
  // Finishes the slot with the encoded value; `bytes` are added to the bytes of its arrays. Drop
  // the value first, otherwise its arrays are shared instead of handed over. Waits without the GIL.
  void send(Slot& slot, ResultKind kind, uint64_t bytes);

 private:
  Allocator* arena_ = nullptr;  // null: on another host
  uint32_t number_ = 0;
  int link_ = -1;
  TicketRing& ring_;
  Encoder encoder_;
  RemotePacket packet_;
};

}  // namespace penstock::python
