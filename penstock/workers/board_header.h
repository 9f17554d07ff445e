#pragma once

#include "penstock/workers/board.h"

namespace penstock {

// What lies in front of a lane's rings; the first lane's in front of the workers' places, too. Only
// board.cc and board_memory.cc see it.
struct Board::Header {
  uint64_t magic;
  uint32_t posts, granules, workers, most_poisoned;
  uint32_t lanes;
  uint32_t inner[kMaxLanes - 1];  // posts of the further lanes
  alignas(64) std::atomic<uint64_t> head;
  std::atomic<uint64_t> posted;
  alignas(64) std::atomic<uint64_t> hint;  // the unit to look at first
  std::atomic<uint64_t> most_live;         // see Ledger
  std::atomic<uint64_t> reopens;           // units that were opened again: look behind the hint
  alignas(64) std::atomic<uint64_t> sleeping[kMaxWorkers / 64];
  alignas(64) std::atomic<uint64_t> wants;  // seq + 1 that the consumer sleeps for; 0: awake
  std::atomic<uint32_t> consumer_event;
  std::atomic<uint32_t> closed;
  std::atomic<uint32_t> active;  // workers from this one on are parked
  alignas(64) ConsumerCounters consumer;
  TraceRing consumer_trace;
};

}  // namespace penstock
