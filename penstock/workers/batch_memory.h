#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/workers/ticket_ring.h"

namespace penstock {

class Allocator;

// A worker's access to the memory of batches: the consumer's arena.
class BatchMemory {
 public:
  virtual ~BatchMemory() = default;
  // The address in this process of an offset in the consumer's arena.
  virtual std::byte* at(uint64_t offset) = 0;
  // An entry's layout was proposed and needs memory: allocates it, or asks the consumer's process.
  virtual void request(TicketRing& ring) = 0;
};

// Allocates memory in the consumer's arena for every proposed entry of a lane. If no memory is
// left, the lowest undelivered entry (in further lanes: any entry) becomes kNoSpace, and others go
// on waiting. False: an entry still waits. In the consumer's process; any thread.
bool serve_space_requests(TicketRing& ring, Allocator& arena);

// BatchMemory in the consumer's own process. The arena outlives it.
class LocalMemory : public BatchMemory {
 public:
  explicit LocalMemory(Allocator& arena) : arena_(arena) {}
  std::byte* at(uint64_t offset) override;
  void request(TicketRing& ring) override { serve_space_requests(ring, arena_); }

 private:
  Allocator& arena_;
};

}  // namespace penstock
