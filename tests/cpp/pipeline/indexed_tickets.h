#pragma once

#include <optional>

#include "penstock/pipeline/scheduler/order.h"
#include "penstock/pipeline/scheduler/scheduler.h"

namespace penstock::testing {

// The tickets of an order, all of which are known.
class IndexedTickets : public Tickets {
 public:
  explicit IndexedTickets(const Order& order) : order_(order) {}
  std::optional<uint64_t> steps(uint64_t, uint64_t base) override { return order_.steps(base); }
  Described describe(const Position& at, BatchEntry& entry) override {
    entry.rows = static_cast<uint32_t>(order_.samples_in(at.base, at.step));
    return Described::kPosted;
  }

 private:
  Order order_;
};

}  // namespace penstock::testing
