#pragma once

#include <cstdint>

namespace penstock {

// The address of a piece of work. What it yields is a pure function of (plan, seed, ticket), so it
// does not matter which worker does it, when, or how often.
struct Ticket {
  uint64_t epoch = 0;
  uint64_t base = 0;  // global batch at which this epoch was entered (0, or where it was restored)
  uint64_t step = 0;  // this rank's batch within the epoch, counted from `base`
  uint64_t version = 0;  // of the plan: changes when an epoch hook changed the dataset
  uint32_t rows = 1;     // samples in the whole batch; 1 where an item is a whole batch
  uint32_t begin = 0;    // the granule: rows [begin, end) of the batch are this ticket's
  uint32_t end = 1;
  uint32_t stream = 0;         // number of the stream, in plans with streams
  uint32_t lane = 0;           // of the ring; lane n + 1 is parallel map n of a Dataset
  bool rows_together = false;  // see BatchEntry::rows_together
  uint64_t input_offset = 0;   // see BatchEntry::input_offset
};

inline constexpr uint32_t kAnyWorker = 0xffffffff;
inline constexpr uint32_t kMaxWorkers = 256;
inline constexpr uint32_t kMaxLanes = 9;         // of a ring
inline constexpr uint32_t kMaxGranuleRows = 64;  // so that a 64-bit mask names them

}  // namespace penstock
