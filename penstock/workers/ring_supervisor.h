#pragma once

#include <cstdint>
#include <functional>

#include "penstock/workers/ticket_ring.h"

namespace penstock {

// The supervisor's end of one lane: takes tickets from workers that died or take too long. It has
// no state of its own. One thread at a time.
class RingSupervisor {
 public:
  explicit RingSupervisor(TicketRing& lane) : ring_(lane) {}

  // Reopens the tasks that the dead `worker` had claimed; returns how many. `charged`: it counts as
  // a loss of the task. A task that was lost `most` times is passed to fail_after_losses, which has
  // to fail it (see take_over). Withdrawn tasks become done instead.
  uint32_t reopen(uint32_t worker, uint32_t most,
                  const std::function<void(const TicketRing::Claim&)>& fail_after_losses,
                  bool charged = true);
  void reopen_task(const TicketRing::Claim& claim, uint32_t losses);
  // Takes a claimed task from its worker. The caller then writes the result and calls
  // TicketRing::finish. False: the worker finishes the task itself.
  bool take_over(const TicketRing::Claim& claim) { return ring_.begin_result(claim); }
  // Marks a call that must not be tried again, because it timed out (`kind` kTimeout) or killed its
  // worker (kLost). False: the call was marked before, or no more calls can be marked.
  bool poison(const TicketRing::Claim& claim, const Call& call, ResultKind kind);

 private:
  void withdraw_proposal(uint64_t seq, uint32_t worker);

  TicketRing& ring_;
};

}  // namespace penstock
