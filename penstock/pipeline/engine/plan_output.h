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
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/engine/plan_tickets.h"
#include "penstock/pipeline/feed/feed.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/loader_state.h"
#include "penstock/pipeline/plan.h"

namespace penstock {

// What a plan's tickets are to who takes them: batches, or elements one by one; and where in the
// epoch he is. Whoever iterates holds the feed, and this; one thread at a time.
class PlanOutput {
 public:
  // A batch, or an element: row `row` of `elements`, which has nothing else.
  struct Item {
    SpecRef spec;
    uint64_t laid_out = 0;  // rows that the memory is laid out for
    uint64_t rows = 0;      // those that are there, at its front
    std::byte* data = nullptr;
    uint64_t bytes = 0;
    std::shared_ptr<void> owner;  // of the memory
    std::optional<uint64_t> row;
    std::shared_ptr<const Block> elements;

    Block batch() const;  // REQUIRED: it is one
  };

  // `seed`: of the Loader.
  PlanOutput(std::shared_ptr<const Plan> plan, uint64_t seed, Feed& feed, PlanTickets& tickets)
      : plan_(std::move(plan)), seed_(seed), feed_(feed), tickets_(tickets) {}

  // Whether the ticket that the feed found has granules that do not go together. Then it is not to
  // be taken: the feed makes it again, as one granule.
  bool apart(Board& board);
  // What its units say, together. None of them failed.
  struct Said {
    uint64_t bytes = 0;
    std::vector<Outcome::Loss> losses;  // those without a row first, ascending
  };
  Said gather(Board& board, const std::function<std::vector<Outcome::Loss>(Unit&)>& losses_in);
  // Takes it. Nothing: all of it was lost, or it is take_failure()'s turn.
  std::optional<Item> take(uint64_t bytes, uint32_t worker, std::vector<Outcome::Loss> losses);
  // The next of the elements that were taken.
  std::optional<Item> take_held();
  // The losses that are to be counted, after either: a batch's with it; of elements that are handed
  // out one by one those in front of it, and with the last one those behind it, but none behind
  // one that is raised.
  struct Losses {
    uint64_t epoch = 0;
    std::vector<Outcome::Loss> losses;
  };
  Losses take_losses() { return std::exchange(counted_, {}); }
  // What is to be raised after those; the position is that element's then.
  std::optional<LoaderFailure> take_failure();
  // Whether take_held() or take_failure() has something.
  bool anything_to_take() const { return held_.rows != 0 || pending_; }
  bool anything_held() const { return anything_to_take() || skipped() != 0; }
  void drop_held();
  // Of what is handed out next. The feed's own may be in the next epoch while the last elements of
  // one are held.
  Position position() const {
    return held_.rows == 0 ? feed_.position() : Position{held_epoch_, held_base_, held_step_};
  }

  // An epoch is one of the feed's (see Plan::rounds).
  LoaderState state() const;
  // Nothing is taken any more: drop_held(), but for the state, which stays what it is.
  void close();
  // Where the feed is to go for a state. Error kInvalidArgument: it is none of this plan
  // and seed.
  struct Place {
    Position position;
    std::set<uint64_t> ahead;
    uint64_t skip = 0;  // elements of the position's ticket that are not to be handed out
    std::optional<Cursor::Place> stream;
  };
  Place place_of(const LoaderState& state) const;
  // Once the feed is there.
  void arrived(const Place& place);

 private:
  Item take_memory(Post& post, const std::vector<Outcome::Loss>& losses = {});
  LoaderState indexed_state() const;
  LoaderState stream_state() const;
  Place place_in_stream(const LoaderState& state) const;
  void count_before(uint64_t row);
  const char* unit() const { return plan_->batched() ? "batches" : "elements"; }
  uint64_t skipped() const { return feed_.position().epoch == skip_epoch_ ? skip_ : 0; }
  void hold(Post& post, uint32_t worker, const std::vector<Outcome::Loss>& losses);

  std::shared_ptr<const Plan> plan_;
  uint64_t seed_;
  Feed& feed_;
  PlanTickets& tickets_;
  SpecRef spec_;  // of the last batch

  // Elements that are handed out one by one: those of a ticket, and then perhaps its error.
  Item held_;                     // no rows: nothing is held
  uint64_t used_ = 0;             // of its rows
  std::vector<uint32_t> places_;  // of its rows among the ticket's
  uint64_t held_epoch_ = 0, held_base_ = 0, held_step_ = 0;
  std::optional<LoaderFailure> pending_;
  uint64_t skip_ = 0;        // elements from the position on that were handed out, or may not be
  uint64_t skip_epoch_ = 0;  // those are of
  std::optional<LoaderState> last_;      // once it is closed
  std::deque<Outcome::Loss> uncounted_;  // of the ticket, by rows
  Losses counted_;
};

}  // namespace penstock
