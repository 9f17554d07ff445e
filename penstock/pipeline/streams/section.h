#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/plan.h"
#include "penstock/pipeline/streams/section_budget.h"
#include "penstock/pipeline/streams/section_result.h"
#include "penstock/workers/board.h"

namespace penstock {

// How a section's results come back from its workers.
class SectionInlet {
 public:
  virtual ~SectionInlet() = default;
  // What a done unit of a section's lane carries (kRows, kError); it is the unit's no longer. On
  // the cursor's thread, or whoever ends the feed.
  virtual SectionResult take(Unit& unit) = 0;
};

// The costly stretches in front of streams' stages, as a cursor reaches them: where their elements
// are made. Section n of a plan has lane n + 1 of the board, and the same workers and memory as
// everything else. Immutable, but for the cursor's budget(): any thread; outlived by board, arena
// and inlet.
class Sections {
 public:
  struct Options {
    uint32_t workers = 1;
    uint64_t max_bytes = UINT64_MAX;  // of what they all have
  };
  Sections(std::shared_ptr<const Plan> plan, Board& board, Allocator& arena, SectionInlet& inlet,
           const Options& options)
      : plan_(std::move(plan)),
        board_(board),
        arena_(arena),
        inlet_(inlet),
        workers_(options.workers),
        budget_(options.max_bytes, plan_->sections().size()) {}

  const Plan& plan(uint32_t number) const { return *plan_->sections()[number]; }
  Board& lane(uint32_t number) const { return board_.lane(number + 1); }
  Allocator& arena() const { return arena_; }
  SectionInlet& inlet() const { return inlet_; }
  uint32_t workers() const { return workers_; }
  // Elements that are made and not yet taken, of each section.
  uint32_t queue() const { return queue_of(workers_); }
  // Bytes of elements that are taken of one section at a time, or else one: others have some, and
  // half is for what is made meanwhile.
  uint64_t chunk_bytes() const;
  SectionBudget& budget() const { return budget_; }

  // Ring sizes of the lanes that a plan's sections need (Board::Shape::inner).
  static std::vector<uint32_t> lanes_for(const Plan& plan, uint32_t workers);

 private:
  static uint32_t queue_of(uint32_t workers);

  std::shared_ptr<const Plan> plan_;
  Board& board_;
  Allocator& arena_;
  SectionInlet& inlet_;
  const uint32_t workers_;
  mutable SectionBudget budget_;
};

}  // namespace penstock
