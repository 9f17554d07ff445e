#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/stages/built.h"
#include "penstock/pipeline/streams/parallel_map_budget.h"
#include "penstock/pipeline/streams/parallel_map_result.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// Takes the results of a parallel map from the tasks of its lane.
class ParallelMapResults {
 public:
  virtual ~ParallelMapResults() = default;
  // Takes the result of a done task (kRows, kError). On the stream reader's thread, or the thread
  // that closes the loader.
  virtual ParallelMapResult take(Task& task) = 0;
};

// The parallel maps of a plan: costly stages in front of streams' stages, whose elements the
// workers make in parallel and the stream reader takes in order. Parallel map n has lane n + 1 of
// the ring; workers and memory are those of the batches. Immutable, except for budget(), which
// belongs to the stream reader's thread. Ring, arena and results outlive this.
class ParallelMaps {
 public:
  struct Options {
    uint32_t workers = 1;
    uint64_t max_bytes = UINT64_MAX;  // of all elements of all parallel maps
  };
  // `maps`: what each of them makes, from the source upward.
  ParallelMaps(std::vector<Built> maps, TicketRing& ring, Allocator& arena,
               ParallelMapResults& results, const Options& options)
      : maps_(std::move(maps)),
        ring_(ring),
        arena_(arena),
        results_(results),
        workers_(options.workers),
        budget_(options.max_bytes, maps_.size()) {}

  const Built& made(uint32_t number) const { return maps_[number]; }
  TicketRing& lane(uint32_t number) const { return ring_.lane(number + 1); }
  Allocator& arena() const { return arena_; }
  ParallelMapResults& results() const { return results_; }
  uint32_t workers() const { return workers_; }
  // Elements that each parallel map may make ahead.
  uint32_t queue() const { return queue_of(workers_); }
  // Bytes of elements that are taken from one parallel map at a time, but at least one element: the
  // map's share without the half for elements that are made meanwhile.
  uint64_t chunk_bytes() const;
  ParallelMapBudget& budget() const { return budget_; }

  // Ring sizes of the lanes that so many parallel maps need (TicketRing::Shape::inner).
  static std::vector<uint32_t> lanes_for(size_t maps, uint32_t workers);

 private:
  static uint32_t queue_of(uint32_t workers);

  std::vector<Built> maps_;
  TicketRing& ring_;
  Allocator& arena_;
  ParallelMapResults& results_;
  const uint32_t workers_;
  mutable ParallelMapBudget budget_;
};

}  // namespace penstock
