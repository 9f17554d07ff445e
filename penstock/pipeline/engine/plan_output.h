#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/engine/loader_options.h"
#include "penstock/pipeline/engine/loader_state.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/engine/plan_tickets.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/scheduler/scheduler.h"

namespace penstock {

// Turns the results of a plan's tickets into the consumer's items: batches, or elements one by one.
// Also keeps the consumer's place in the epoch. One thread at a time.
class PlanOutput {
 public:
  // A batch, or an element. Of an element only `row` and `elements` are set.
  struct Item {
    SpecRef spec;
    uint64_t laid_out = 0;  // rows that the memory is laid out for
    uint64_t rows = 0;      // rows that exist, at the front
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    std::shared_ptr<void> owner;  // of the memory
    std::optional<uint64_t> row;
    std::shared_ptr<const Block> elements;

    Block batch() const;  // REQUIRED: the item is a batch
  };

  // `seed`: of the Loader.
  PlanOutput(std::shared_ptr<const Plan> plan, uint64_t seed, Scheduler& scheduler,
             PlanTickets& tickets)
      : plan_(std::move(plan)), seed_(seed), scheduler_(scheduler), tickets_(tickets) {}

  // Whether the current ticket has granules that do not match. Such a ticket is not taken; it is
  // made again, as one granule.
  bool remake_if_mismatched(TicketRing& ring);
  // The combined results of the current ticket's tasks. REQUIRED: no task failed.
  struct Said {
    uint64_t bytes = 0;
    std::vector<Loss> losses;  // first those without a row; ascending
  };
  Said gather(TicketRing& ring, const std::function<std::vector<Loss>(Task&)>& losses_in);
  // Takes the current ticket. Nothing: all of its rows were lost, or take_failure() has an error.
  std::optional<Item> take(uint64_t bytes, uint32_t worker, std::vector<Loss> losses);
  // The next of the elements that were taken.
  std::optional<Item> take_held();
  // Losses to report together with the item just returned by take() or take_held(): those of the
  // batch. For elements one by one: those before the element; after a ticket's last element also
  // the rest, up to an element whose error is raised.
  struct Losses {
    uint64_t epoch = 0;
    std::vector<Loss> losses;
  };
  Losses take_losses() { return std::exchange(counted_, {}); }
  // The error to raise next. The position is then that of the failed element.
  std::optional<LoaderFailure> take_failure();
  // Whether take_held() or take_failure() has something.
  bool can_take() const { return held_.rows != 0 || pending_; }
  bool has_held() const { return can_take() || skipped() != 0; }
  void drop_held();
  // The position of the next item. The scheduler's own position may be in the next epoch already
  // while the last elements of this one are held.
  Position position() const {
    return held_.rows == 0 ? scheduler_.position() : Position{held_epoch_, held_base_, held_step_};
  }

  // `epoch` counts the scheduler's epochs (see Plan::rounds).
  LoaderState state() const;
  // Call it when no more items are taken: as drop_held(), but state() stays the same.
  void close();
  // The place that a state describes. Error kInvalidArgument: the state is of another plan or seed.
  struct Place {
    Position position;
    std::set<uint64_t> ahead;
    uint64_t skip = 0;  // elements of the position's ticket that were delivered already
    std::optional<StreamReader::Place> stream;
  };
  Place place_of(const LoaderState& state) const;
  // Call after the scheduler has moved to that place.
  void arrived(const Place& place);

 private:
  Item take_memory(BatchEntry& entry, const std::vector<Loss>& losses = {});
  LoaderState indexed_state() const;
  LoaderState stream_state() const;
  Place place_in_stream(const LoaderState& state) const;
  void count_before(uint64_t row);
  const char* items() const { return plan_->batched() ? "batches" : "elements"; }
  uint64_t skipped() const { return scheduler_.position().epoch == skip_epoch_ ? skip_ : 0; }
  void hold(BatchEntry& entry, uint32_t worker, const std::vector<Loss>& losses);

  std::shared_ptr<const Plan> plan_;
  uint64_t seed_;
  Scheduler& scheduler_;
  PlanTickets& tickets_;
  SpecRef spec_;  // of the last batch

  // Elements that are delivered one by one: those of a ticket, and then its error, if any.
  Item held_;                     // no rows: nothing is held
  uint64_t used_ = 0;             // rows of held_ that were delivered
  std::vector<uint32_t> places_;  // the row in the ticket of each row of held_
  uint64_t held_epoch_ = 0, held_base_ = 0, held_step_ = 0;
  std::optional<LoaderFailure> pending_;
  uint64_t skip_ = 0;                // elements after the position that must not be delivered again
  uint64_t skip_epoch_ = 0;          // the epoch of those elements
  std::optional<LoaderState> last_;  // the state at close()
  std::deque<Loss> uncounted_;       // losses of the ticket that are not reported yet, by row
  Losses counted_;
};

}  // namespace penstock
