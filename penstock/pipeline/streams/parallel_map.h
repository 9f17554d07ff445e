#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/memory/byte_budget.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/stage.h"
#include "penstock/workers/ticket_ring.h"

namespace penstock {

// The result of one element of a parallel map, without its row.
struct ParallelMapResult {
  std::optional<Failure> failure;  // if set, there is no row
  std::vector<Failure> notes;      // losses before the element
};

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
// of the ring; it shares workers, memory and the budget with the batches. Ring, arena, results and
// budget must outlive this.
//
// Threads: on_grant() from any; everything else from the stream reader's thread.
class ParallelMaps {
 public:
  // The reader of a parallel map, for grants.
  class Reader {
   public:
    virtual ~Reader() = default;
    // Makes further elements, if bytes were granted to the map that it waited for.
    virtual void use_grant() = 0;
  };

  // `maps`: the stages of each, from the source upward. `budget`: of the whole loader.
  ParallelMaps(std::vector<Built> maps, TicketRing& ring, Allocator& arena,
               ParallelMapResults& results, ByteBudget& budget, uint32_t workers)
      : maps_(std::move(maps)),
        ring_(ring),
        arena_(arena),
        results_(results),
        budget_(budget),
        workers_(workers) {}
  ParallelMaps(const ParallelMaps&) = delete;
  ParallelMaps& operator=(const ParallelMaps&) = delete;

  const Built& made(uint32_t number) const { return maps_[number]; }
  TicketRing& lane(uint32_t number) const { return ring_.lane(number + 1); }
  Allocator& arena() const { return arena_; }
  ParallelMapResults& results() const { return results_; }
  ByteBudget& budget() const { return budget_; }
  uint32_t workers() const { return workers_; }
  // The number of elements that each parallel map may make ahead.
  uint32_t queue() const { return queue_of(workers_); }

  // The estimate for an element of a map that has made none: the largest element of any map so far,
  // or a guess that is large enough that few are started at first.
  uint64_t unknown_bytes() const;
  void saw_element(uint64_t bytes) { element_bytes_ = std::max(element_bytes_, bytes); }

  void add_reader(Reader* reader) { readers_.push_back(reader); }
  void remove_reader(Reader* reader) { std::erase(readers_, reader); }
  // A map was granted bytes. Wakes the thread of the stream reader if that has nothing to do.
  void on_grant();
  // Before the first element: called by on_grant().
  void set_wake(std::function<void()> wake) { wake_ = std::move(wake); }
  bool granted() const { return granted_.load(std::memory_order_acquire); }
  // Lets maps make further elements of the bytes that they were granted. Call it after elements
  // were taken or released. Does nothing while a parallel map reads its input (Reading), because
  // that input may be another parallel map.
  void use_grants();
  class Reading {
   public:
    explicit Reading(ParallelMaps& maps) : maps_(maps) { ++maps_.reading_; }
    ~Reading() { --maps_.reading_; }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    ParallelMaps& maps_;
  };

  // The ring sizes of the lanes that `maps` parallel maps need (TicketRing::Shape::inner).
  static std::vector<uint32_t> lanes_for(size_t maps, uint32_t workers);

 private:
  static uint32_t queue_of(uint32_t workers);

  const std::vector<Built> maps_;
  TicketRing& ring_;
  Allocator& arena_;
  ParallelMapResults& results_;
  ByteBudget& budget_;
  const uint32_t workers_;
  uint64_t element_bytes_ = 0;
  uint32_t reading_ = 0;
  std::vector<Reader*> readers_;
  std::function<void()> wake_;
  std::atomic<bool> granted_ = false;
};

}  // namespace penstock
