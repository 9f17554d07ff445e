#pragma once

#include <cstdint>
#include <memory>

#include "penstock/memory/allocator.h"
#include "penstock/workers/link.h"
#include "penstock/workers/worker.h"

namespace penstock::python {

// The feed's arena, as a worker process reaches it.
class RemoteRows : public RowMemory {
 public:
  RemoteRows(std::shared_ptr<Region> region, int link) : region_(std::move(region)), link_(link) {}
  std::byte* at(uint64_t offset) override { return region_->base() + offset; }
  void request(Board&) override { link_send(link_, {LinkMessage::kRoom, 0, 0, 0}); }

 private:
  std::shared_ptr<Region> region_;
  int link_;
};

// What a worker process has of its loader: the board, the feed's arena, and one of its own, which
// the consumer knows as `number`. Nothing of it is given back: arrays of user code live in the
// arena until the process ends.
class WorkerProcess {
 public:
  WorkerProcess(uint32_t worker, int board_fd, int arena_fd, int link, uint32_t number, int64_t pid)
      : board_(*Board::open(board_fd).release()), rows_(Region::open(arena_fd), link) {
    board_.place(worker).pid.store(pid);
    Allocator::Options options;
    options.wait_for_returns = true;  // leases are the consumer's
    options.ledger = board_.ledger(worker, number);
    arena_ = new Allocator(Region::create(Region::Kind::kShared), options);
    // Fails only where the consumer is gone, and then the board is closed.
    link_send(link, {LinkMessage::kArena, 0, number, 0}, {}, arena_->region()->fd());
  }

  Board& board() { return board_; }
  Allocator& arena() { return *arena_; }
  RowMemory& rows() { return rows_; }

 private:
  Board& board_;
  Allocator* arena_ = nullptr;
  RemoteRows rows_;
};

}  // namespace penstock::python
