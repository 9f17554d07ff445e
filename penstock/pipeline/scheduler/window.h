#pragma once

#include <cstdint>
#include <functional>

#include "penstock/memory/byte_budget.h"
#include "penstock/pipeline/scheduler/tickets.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// The number of granules (parts) of a batch, which several workers make at once. Usually 1: each
// worker makes a batch of its own. It is more if workers would be idle otherwise:
// - Nothing is in flight: the consumer waits for this batch only, so every worker makes a part.
// - Fewer batches than workers are in flight, because no more fit into the bytes budget: two parts
//   for each worker, so that no worker waits long for the last part of another worker's batch.
// A part is never so small that the cost of a task matters (kGranuleWorthNs).
struct BatchDivision {
  uint32_t rows = 1;     // of the batch
  uint32_t workers = 1;  // active workers
  uint64_t window = 1;   // batches that may be in flight
  bool first = false;    // nothing is in flight
  uint64_t row_ns = 0;   // time per row; 0: unknown
  uint32_t most = 1;     // granules that an entry has space for
};
inline constexpr uint64_t kGranuleWorthNs = 100'000;
inline constexpr uint32_t kMaxGranules = 32;

// At least 1; no granule is empty (see ticket_of).
uint32_t granules_for(const BatchDivision& of);

// Granules that an entry must have space for: those of the largest batch.
uint32_t max_granules(uint32_t workers, uint64_t rows);

// How many tickets may be in flight, and how a batch is divided among workers: from the queue, the
// budget, and the batches so far. Holds the tickets' bytes in the budget, with one batch as the
// minimum. The consumer's thread.
class TicketWindow {
 public:
  struct Options {
    uint32_t granule_rows = 1;  // rows per granule; 0: chosen per batch (BatchDivision)
    bool slow_start = false;    // Scheduler::Options::slow_start
  };
  // `on_grant`: as for ByteBudget::Holder.
  TicketWindow(TicketRing& ring, const Tickets& tickets, ByteBudget& budget, const Options& options,
               std::function<void()> on_grant)
      : ring_(ring), tickets_(tickets), options_(options), holder_(budget, std::move(on_grant)) {}

  // The most tickets that may be in flight, whatever their bytes: `queue` batches that are finished
  // and not yet delivered, and one more for each of `workers`.
  uint64_t most(uint32_t queue, uint32_t workers) const;
  // How many of these there is space for now, if other holders take nothing more.
  uint64_t size(uint32_t queue, uint32_t workers) const;
  // Takes bytes for one more ticket than `in_flight`. The first one always gets them. False: there
  // is no space yet.
  bool take_one_more(uint64_t in_flight, uint32_t workers);
  // Holds the bytes of `in_flight` tickets, unless no other holder could use them. `more`: further
  // tickets will be posted, so the minimum stays reserved.
  void hold(uint64_t in_flight, uint32_t workers, bool more);
  // No ticket needs bytes that take_one_more() did not get.
  void withdraw();
  // Another holder waits for bytes, or this one.
  bool contended() const { return holder_.budget().contended(); }
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
  uint64_t ticket_bytes() const;
  uint64_t work_bytes() const;
  uint64_t bytes_of(uint64_t tickets, uint32_t workers) const;
  void set_minimum(uint64_t bytes);
  uint64_t row_ns() const;

  TicketRing& ring_;
  const Tickets& tickets_;
  const Options options_;
  uint64_t batch_bytes_ = 0;
  bool sized_ = false;
  uint64_t delivered_ = 0;
  uint64_t block_bytes_ = 0;
  uint32_t block_rows_ = 0;  // of the batch with block_bytes_

  ByteBudget::Holder holder_;
  uint64_t held_ = 0, minimum_ = 0;  // as holder_ has them
  bool asks_ = false;                // holder_ may wait, or have bytes set aside
};

}  // namespace penstock
