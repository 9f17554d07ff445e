#pragma once

#include <cstdint>
#include <memory>

#include "penstock/memory/allocator.h"
#include "penstock/workers/link.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock::python {

// The consumer's arena, mapped by a worker process.
class RemoteMemory : public BatchMemory {
 public:
  RemoteMemory(std::shared_ptr<Region> region, int link)
      : region_(std::move(region)), link_(link) {}
  std::byte* at(uint64_t offset) override { return region_->base() + offset; }
  void request(TicketRing&) override { link_send(link_, {LinkMessage::kSpace, 0, 0, 0}); }

 private:
  std::shared_ptr<Region> region_;
  int link_;
};

// The shared objects of a worker process: the ring, the consumer's arena, and an arena of its own
// with this `number`. Never freed: arrays of user code live in the arena until the process ends.
class WorkerProcess {
 public:
  WorkerProcess(uint32_t worker, int ring_fd, int arena_fd, int link, uint32_t number, int64_t pid)
      : ring_(*TicketRing::open(ring_fd).release()), memory_(Region::open(arena_fd), link) {
    ring_.place(worker).pid.store(pid);
    Allocator::Options options;
    options.wait_for_returns = true;  // the consumer holds the leases
    options.ledger = ring_.ledger(worker, number);
    arena_ = new Allocator(Region::create(Region::Kind::kShared), options);
    // Fails only if the consumer has ended; then the ring is closed.
    link_send(link, {LinkMessage::kArena, 0, number, 0}, {}, arena_->region()->fd());
  }

  TicketRing& ring() { return ring_; }
  Allocator& arena() { return *arena_; }
  BatchMemory& memory() { return memory_; }

 private:
  TicketRing& ring_;
  Allocator* arena_ = nullptr;
  RemoteMemory memory_;
};

}  // namespace penstock::python
