#pragma once

#include <cstdint>

#include "penstock/base/error.h"
#include "penstock/workers/slot.h"
#include "penstock/workers/ticket_ring.h"
#include "penstock/workers/ticket_ring_layout.h"

namespace penstock {

// Makes the results of tickets. The one interface of workers in line, in threads and in processes.
class TicketRunner {
 public:
  virtual ~TicketRunner() = default;
  // Makes the ticket's result and finishes `slot`. On the worker's own thread. Throws penstock's
  // own errors only (no memory, closed); an exception of user code is a result.
  virtual void run(const Ticket& ticket, Slot& slot) = 0;
  // Called around every sleep of the worker, to release and take Python's lock.
  virtual void before_wait() {}
  virtual void after_wait() {}
  // Asked between tickets: whether another thread waits for a lock that this runner holds. If so,
  // give_way() is called.
  virtual bool wanted() const { return false; }
  virtual void give_way() {}
  // Called between tickets, after a sleep, to read messages that came meanwhile.
  virtual void catch_up() {}
  // Asked between tickets: whether this runner can run no more tickets, so that serve() returns.
  virtual bool ended() const { return false; }
};

// The error that ended a ticket. REQUIRED: ResultKind::kBroken.
Error error_in(const Task& task);

// Runs the ticket of a slot that was read (Slot::read_ticket); an Error becomes the slot's result.
void run_slot(TicketRunner& runner, Slot& slot);

// Claims and runs tickets until the ring closes, the runner has ended, or a ticket was taken away
// from this worker, whose place then belongs to its replacement.
void serve(TicketRing& ring, uint32_t worker, TicketRunner& runner, BatchMemory* memory);
// Runs the open tasks of one entry: the consumer working in line.
void serve_entry(TicketRing& ring, uint32_t worker, uint64_t seq, TicketRunner& runner,
                 BatchMemory* memory);

}  // namespace penstock
