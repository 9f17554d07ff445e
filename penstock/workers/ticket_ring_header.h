#pragma once

#include "penstock/workers/ticket_ring.h"

namespace penstock {

// Precedes the entries and tasks of a lane; the first lane's also precedes the workers' places.
// Included only by the ticket_ring*.cc files.
struct TicketRing::Header {
  uint64_t magic;
  uint32_t entries, granules, workers, max_poisoned;
  uint32_t lanes;
  uint32_t inner[kMaxLanes - 1];  // entries of the further lanes
  alignas(64) std::atomic<uint64_t> head;
  std::atomic<uint64_t> posted;
  alignas(64) std::atomic<uint64_t> hint;  // the task to look at first
  std::atomic<uint64_t> most_live;         // see Ledger
  std::atomic<uint64_t> reopens;           // counts reopened tasks, which may lie before the hint
  alignas(64) std::atomic<uint64_t> sleeping[kMaxWorkers / 64];
  alignas(64) std::atomic<uint64_t> wants;  // seq + 1 that the consumer waits for; 0: it is awake
  std::atomic<uint32_t> consumer_event;
  std::atomic<uint32_t> closed;
  std::atomic<uint32_t> active;  // workers from this one on are parked
  alignas(64) ConsumerCounters consumer;
  TraceRing consumer_trace;
};

}  // namespace penstock
