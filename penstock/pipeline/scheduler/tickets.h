#pragma once

#include <algorithm>

#include "penstock/pipeline/scheduler/order.h"
#include "penstock/pipeline/scheduler/scheduler.h"

namespace penstock {

// Tickets of an indexed source, all of which are known.
class IndexedTickets : public Tickets {
 public:
  explicit IndexedTickets(const Order& order) : order_(order) {}
  std::optional<uint64_t> steps(uint64_t, uint64_t base) override { return order_.steps(base); }
  Described describe(const Position& at, BatchEntry& entry) override {
    entry.rows = static_cast<uint32_t>(order_.samples_in(at.base, at.step));
    return Described::kPosted;
  }
  void set_order(const Order& order) { order_ = order; }

 private:
  Order order_;
};

// Tickets of `count` streams in turn: ticket k is the next one of stream k mod count. Stream s
// belongs to worker s mod `workers`. The epoch goes on until every stream has ended.
class StreamTickets : public Tickets {
 public:
  StreamTickets(uint32_t count, uint32_t rows, uint32_t workers)
      : count_(count), rows_(rows), workers_(std::max(workers, 1u)) {}
  std::optional<uint64_t> steps(uint64_t, uint64_t) override { return std::nullopt; }
  Described describe(const Position& at, BatchEntry& entry) override {
    entry.rows = rows_;
    entry.stream = static_cast<uint32_t>((at.base + at.step) % count_);
    entry.owner = entry.stream % workers_;
    return Described::kPosted;
  }
  uint32_t streams() const override { return count_; }

 private:
  uint32_t count_, rows_, workers_;
};

}  // namespace penstock
