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
  // Takes the result of a finished task (kRows, kError). On the stream reader's thread, or the
  // thread that closes the loader.
  virtual ParallelMapResult take(Task& task) = 0;
};

// The parallel maps of a plan: costly stages in front of streams' stages. The workers make their
// elements in parallel, and the stream reader takes them in order. Parallel map n uses lane n + 1
// of the ring; it shares workers and memory with the batches. Immutable, except for budget(), which
// belongs to the stream reader's thread. Ring, arena and results must outlive this.
class ParallelMaps {
 public:
  struct Options {
    uint32_t workers = 1;
    uint64_t max_bytes = UINT64_MAX;  // for the elements of all parallel maps together
  };
  // `maps`: the stages of each, from the source upward.
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
  // The number of elements that each parallel map may make ahead.
  uint32_t queue() const { return queue_of(workers_); }
  // The bytes of elements that are taken from one parallel map at a time. At least one element is
  // taken. Half of the map's share is left for the elements that are made meanwhile.
  uint64_t chunk_bytes() const;
  ParallelMapBudget& budget() const { return budget_; }

  // The ring sizes of the lanes that `maps` parallel maps need (TicketRing::Shape::inner).
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
