#pragma once

#include <cstdint>

#include "penstock/pipeline/scheduler/tickets.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// How many tickets may be in flight, and how a batch is divided among workers: from the queue, the
// bytes budget, and the batches so far. The consumer's thread.
class TicketWindow {
 public:
  struct Options {
    uint64_t max_bytes = UINT64_MAX;
    uint32_t granule_rows = 1;  // rows per granule; 0: chosen per batch (BatchDivision)
  };
  TicketWindow(TicketRing& ring, const Tickets& tickets, const Options& options)
      : ring_(ring), tickets_(tickets), options_(options) {}

  // Tickets that may be in flight: `queue` batches that are finished and not yet delivered, and one
  // more for each of `workers`.
  uint64_t size(uint32_t queue, uint32_t workers) const;
  // The number of granules of a batch of `rows` rows.
  uint32_t granules_of(uint32_t rows, uint32_t queue, uint32_t workers) const;

  // A batch of this size was delivered.
  void delivered(uint64_t bytes);
  // A batch of `rows` rows needed a block of this size.
  void filled(uint32_t rows, uint64_t bytes);

  uint64_t batch_bytes() const { return batch_bytes_; }  // of the largest batch so far
  // A batch was delivered. Batches that are not arrays have 0 bytes.
  bool sized() const { return sized_; }
  // Memory of the largest batch so far; 0: batches have no block of their own.
  uint64_t block_bytes() const { return block_bytes_; }

 private:
  uint64_t fitting(uint64_t left, uint64_t bytes, uint64_t work, uint32_t workers) const;
  uint64_t row_ns() const;

  TicketRing& ring_;
  const Tickets& tickets_;
  const Options options_;
  uint64_t batch_bytes_ = 0;
  bool sized_ = false;
  uint64_t block_bytes_ = 0;
  uint32_t block_rows_ = 0;  // of the batch with block_bytes_
};

}  // namespace penstock
