#pragma once

#include <array>
#include <cstdint>

#include "penstock/workers/ticket_ring.h"

namespace penstock {

// A worker's end: claims tickets of all lanes, and sleeps while there are none. One thread.
class RingWorker {
 public:
  // `ring`: the first lane. Or another lane, to serve only this one; then the worker must not wait.
  RingWorker(TicketRing& ring, uint32_t worker) : ring_(ring), worker_(worker) {}
  RingWorker(const RingWorker&) = delete;
  RingWorker& operator=(const RingWorker&) = delete;

  // Claims an open task, of the first lane if possible: the consumer waits for its batches. False:
  // there is none for this worker, or it is parked, or the ring is closed.
  bool claim(TicketRing::Claim& out);
  // Claims an open task of that entry of the first lane: for the consumer working in line.
  bool claim_of(uint64_t seq, TicketRing::Claim& out);
  // Sleeps until there may be work in any lane, or the ring closes. `since`, in ns: when the worker
  // began to wait for a ticket, for figures(), unless it is parked or spare; 0: the wait is not
  // counted.
  void wait(uint64_t since = 0);
  // Whether the worker gets no ticket although some are open: one worker alone does tiny tickets
  // under a shared lock sooner (LockTrial).
  bool spare() const;

 private:
  static constexpr uint64_t kLookAtAll = UINT64_MAX;

  bool claim_in(TicketRing& lane, TicketRing::Claim& out);
  bool try_claim(TicketRing& lane, uint64_t seq, uint32_t granule, uint64_t word,
                 TicketRing::Claim& out);
  bool open_in(TicketRing& lane) const;
  bool any_open() const;

  TicketRing& ring_;
  const uint32_t worker_;
  // By lane: the task to look at first, or kLookAtAll.
  std::array<uint64_t, kMaxLanes> look_from_{};
};

}  // namespace penstock
