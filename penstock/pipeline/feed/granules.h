#pragma once

#include <cstdint>

namespace penstock {

// Into how many granules a batch is divided, for several workers to make at once. As a rule it is
// one: each worker makes a batch of its own, and nothing has to fit together. It is worth more
// where that leaves workers without work:
//
//   nothing is in flight    the consumer waits for this batch, and for nothing else: every worker
//                           takes a part of it
//   few batches may be      there are fewer batches than workers, for they are so large that no
//   more in flight               fit into the bytes budget: two parts for each worker, so that
//   nobody
//                           waits long for the last part of another batch
//
// and no part is to be so small that handing it out is a cost.
struct BatchDivision {
  uint32_t rows = 1;     // of the batch
  uint32_t workers = 1;  // that are active
  uint64_t window = 1;   // batches that may be in flight
  bool first = false;    // nothing is in flight
  uint64_t row_ns = 0;   // what a row takes; 0: nobody knows yet
  uint32_t most = 1;     // granules that a post has room for
};
inline constexpr uint64_t kGranuleWorthNs = 100'000;
inline constexpr uint32_t kMostGranules = 32;

// At least 1; none of them is empty (see ticket_of).
uint32_t granules_for(const BatchDivision& of);

// Room that a feed's posts need: granules of its largest batch.
uint32_t most_granules(uint32_t workers, uint64_t rows);

}  // namespace penstock
