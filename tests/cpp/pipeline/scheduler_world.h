#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include "indexed_tickets.h"
#include "penstock/pipeline/scheduler/scheduler.h"
#include "penstock/workers/ring_worker.h"
#include "penstock/workers/ticket_runner.h"

// A scheduler whose tickets are claimed by the test, so nothing depends on time.
namespace penstock::testing {

inline constexpr uint64_t kRowBytes = 100'000;

struct Settings {
  uint64_t length = 10;
  uint64_t batch = 1;
  uint32_t queue = 3, workers = 1;
  uint64_t max_bytes = UINT64_MAX;
  bool ordered = true, pause = false;
  uint32_t granule_rows = 1;
  size_t arena_bytes = SIZE_MAX;
  bool shared = false;  // the ring: as for workers that are processes
  bool slow_start = false;
};

// Writes rows whose bytes are the step; whole items are packets with their position.
class Writes : public TicketRunner {
 public:
  explicit Writes(bool rows) : rows_(rows) {}
  void run(const Ticket& ticket, Slot& slot) override {
    if (!rows_) {
      Position at{ticket.epoch, ticket.base, ticket.step};
      slot.finish_inline(ResultKind::kPacket, kRowBytes, std::as_bytes(std::span(&at, 1)));
      return;
    }
    std::byte* base = slot.memory(std::as_bytes(std::span("r", 1)), ticket.rows * kRowBytes);
    std::memset(base + ticket.begin * kRowBytes, static_cast<int>(ticket.step),
                (ticket.end - ticket.begin) * kRowBytes);
    slot.finish_inline(ResultKind::kRows, (ticket.end - ticket.begin) * kRowBytes, {});
  }

 private:
  bool rows_;
};

class World {
 public:
  explicit World(const Settings& s, std::unique_ptr<Tickets> tickets = nullptr, bool rows = false)
      : order_({.length = s.length, .batch_size = s.batch}),
        tickets_(tickets ? std::move(tickets) : std::make_unique<IndexedTickets>(order_)),
        ring_(TicketRing::create({2 * (s.queue + s.workers) + 2,
                                  static_cast<uint32_t>(s.batch / s.granule_rows), s.workers + 1},
                                 s.shared)),
        arena_(Region::create(Region::Kind::kPrivate), {.max_bytes = s.arena_bytes}),
        memory_(arena_),
        writes_(rows),
        budget_(s.max_bytes),
        scheduler_(*ring_, arena_, *tickets_, budget_, options_of(s),
                   [this](Task&) { ++discarded_; }) {}

  static Scheduler::Options options_of(const Settings& s) {
    Scheduler::Options options;
    options.queue = s.queue;
    options.workers = s.workers;
    options.ordered = s.ordered;
    options.pause_at_epochs = s.pause;
    options.granule_rows = s.granule_rows;
    options.slow_start = s.slow_start;
    return options;
  }

  Scheduler& scheduler() { return scheduler_; }
  TicketRing& ring() { return *ring_; }
  Allocator& arena() { return arena_; }
  ByteBudget& budget() { return budget_; }
  int discarded() const { return discarded_; }

  uint64_t in_flight() { return ring_->posted() - ring_->head(); }
  void work(uint64_t seq) { serve_entry(*ring_, 0, seq, writes_, &memory_); }
  void work_all() {
    for (uint64_t seq = ring_->head(); seq < ring_->posted(); ++seq) work(seq);
  }
  std::optional<TicketRing::Claim> claim(uint32_t worker = 1) {
    TicketRing::Claim claim;
    return RingWorker(*ring_, worker).claim(claim) ? std::optional(claim) : std::nullopt;
  }
  Slot slot_of(const TicketRing::Claim& claim) { return Slot(*ring_, claim, &memory_, writes_); }
  void finish(const TicketRing::Claim& claim) {
    Slot slot = slot_of(claim);
    writes_.run(ticket_of(claim), slot);
  }
  // Takes the next batch and returns its position; nothing at the epoch's end. Runs tickets in line
  // if necessary.
  std::optional<Position> take(uint64_t epoch) {
    for (;;) {
      switch (scheduler_.poll(epoch)) {
        case Scheduler::Poll::kFailed:
          throw std::logic_error("these tickets do not fail");
        case Scheduler::Poll::kEpochEnd:
          return std::nullopt;
        case Scheduler::Poll::kWait:
          EXPECT_TRUE(scheduler_.next_open());
          if (!scheduler_.next_open()) return std::nullopt;
          work(*scheduler_.next_open());
          break;
        case Scheduler::Poll::kBatch: {
          BatchEntry& entry = scheduler_.current();
          Position at{entry.epoch, entry.base, entry.step};
          Task& task = ring_->task_at(scheduler_.current_seq(), 0);
          if (task.kind == ResultKind::kPacket) {
            Position said;
            std::memcpy(&said, task.packet, sizeof(said));
            EXPECT_EQ(said, at);
          }
          uint64_t bytes = task.bytes * entry.granules;
          task.kind = ResultKind::kNone;  // taken: must not be discarded
          if (entry.block_bytes != 0) lease_ = scheduler_.take_rows();
          scheduler_.deliver(bytes, entry.rows);
          return at;
        }
      }
    }
  }
  Lease& lease() { return lease_; }

 private:
  Order order_;
  std::unique_ptr<Tickets> tickets_;
  std::unique_ptr<TicketRing> ring_;
  Allocator arena_;
  LocalMemory memory_;
  Writes writes_;
  int discarded_ = 0;
  ByteBudget budget_;
  Scheduler scheduler_;
  Lease lease_;
};

}  // namespace penstock::testing
