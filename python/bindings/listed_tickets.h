#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "numpy_api.h"
#include "penstock/memory/allocator.h"
#include "penstock/pipeline/scheduler/scheduler.h"

namespace penstock::python {

// Tickets of a Python sampler: an iterable of lists of indices, iterated again each epoch.
class ListedTickets : public Tickets {
 public:
  // begin: a callable (epoch) -> iterator of lists. known: its length, or -1.
  ListedTickets(nanobind::object begin, Allocator& arena)
      : begin_(std::move(begin)), arena_(arena) {}
  std::optional<uint64_t> steps(uint64_t, uint64_t) override { return std::nullopt; }
  Described describe(const Position& at, BatchEntry& entry) override;
  // The exception of the sampler, which is raised when the position reaches its ticket.
  Owned take_error() { return std::move(error_); }

 private:
  nanobind::object begin_;
  Allocator& arena_;
  Owned iterator_, error_;
  uint64_t epoch_ = UINT64_MAX;
  uint64_t next_ = 0;
};

}  // namespace penstock::python
