#pragma once

#include <gtest/gtest.h>

#include "penstock/workers/ring_consumer.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock::testing {

inline uint64_t post(TicketRing& ring, uint32_t granules = 1, uint32_t owner = kAnyWorker,
                     uint64_t epoch = 0) {
  BatchEntry& next = RingConsumer(ring).next_entry();
  next.epoch = epoch;
  next.rows = granules;
  next.granules = granules;
  next.owner = owner;
  uint64_t seq = next.seq;
  RingConsumer(ring).publish(next);
  return seq;
}

inline TaskState state(TicketRing& ring, uint64_t seq, uint32_t granule = 0) {
  return Task::state_of(ring.task_at(seq, granule).word.load());
}

inline void finish(TicketRing& ring, const TicketRing::Claim& claim) {
  ASSERT_TRUE(ring.begin_result(claim));
  ring.finish(claim);
}

inline void drop(const TicketRing::Claim&) {}

}  // namespace penstock::testing
