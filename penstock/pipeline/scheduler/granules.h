#pragma once

#include <cstdint>

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

}  // namespace penstock
