#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/pipeline/feed/feed.h"
#include "penstock/pipeline/loader_state.h"
#include "penstock/pipeline/plan.h"
#include "penstock/pipeline/streams/cursor.h"

namespace penstock {

// The tickets of a Dataset. Where it has a stream each comes with the elements that a cursor took
// out of it; the places before those that may still be asked for again are remembered, so that what
// the feed takes back is simply made again. The consumer's thread, save close().
class PlanTickets : public Tickets {
 public:
  explicit PlanTickets(std::shared_ptr<const Plan> plan);

  // Of a plan with a stream, before anything else. `cursor` outlives this.
  void set_cursor(Cursor* cursor, Allocator& arena, size_t remembered);
  // Of a plan that is listed, before anything else: whose tickets have the positions of their rows
  // as indices: two words (0; how many bytes follow), then a word each.
  void set_lists(std::unique_ptr<Tickets> lists) { lists_ = std::move(lists); }

  std::optional<uint64_t> steps(uint64_t epoch, uint64_t base) override;
  Described describe(const Position& at, Post& post) override;
  bool ready() override { return cursor_ == nullptr || cursor_->ready(); }
  uint64_t input_bytes() const override { return input_bytes_; }
  uint64_t spent_bytes() const override { return cursor_ == nullptr ? 0 : cursor_->excess(); }
  uint64_t work_bytes(uint64_t batch_bytes) const override { return collected_ ? batch_bytes : 0; }
  bool divisible() const override { return rows_ == Rows::kPlaced; }

  // A batch came, of so many bytes, whose rows are, or are not, all of one size.
  void saw(bool fixed, uint64_t bytes);
  // There was a batch whose rows did not come together: from now on one worker makes each.
  void keep_whole() { rows_ = Rows::kTogether; }

  // Of a plan with a stream:
  // Where the ticket at `at` begins.
  Cursor::Place place_at(const Position& at) const;
  // From now on that ticket begins there.
  void restore(const Position& at, Cursor::Place place);
  // The source has another length: an epoch may have another number of tickets.
  void length_changed() { steps_.reset(); }
  // What was left out on the way to the ticket.
  std::vector<Failure> take_losses(const Position& at);
  // The same behind the last ticket of an epoch that ended, once the position has left it.
  struct Leftover {
    uint64_t epoch = 0;
    std::vector<Failure> losses;
  };
  Leftover take_leftover(const Position& at);
  // The epoch is left before its end: nobody was to see what is behind its last ticket.
  void drop_leftover() { leftover_ = {}; }
  // Nothing is asked for any more: exceptions, and what they hold, go.
  void let_go();
  // What the stream failed with, in place of the ticket at the position; once.
  std::optional<Failure> take_failure();

 private:
  struct Record {
    Position at;
    Cursor::Place place;
    std::vector<Failure> losses;
  };

  // Whether a row's place in its batch is known before the others are.
  enum class Rows : uint8_t {
    kTogether,  // no
    kUntold,    // the first batch will tell
    kPlaced,    // yes, as far as is known
  };

  std::shared_ptr<const Plan> plan_;
  Rows rows_ = Rows::kTogether;
  bool collected_ = false;         // rows are made elsewhere, and then written
  std::optional<uint64_t> steps_;  // of an epoch that begins at steps_base_, once asked for
  uint64_t steps_base_ = 0;
  std::unique_ptr<Tickets> lists_;
  Cursor* cursor_ = nullptr;
  Allocator* arena_ = nullptr;
  uint64_t input_bytes_ = 0;  // of the largest parcel
  size_t remembered_ = 0;
  std::deque<Record> records_;  // of successive tickets; the last is the one that comes next
  bool begun_ = false;          // the cursor is at the last record
  std::optional<Failure> failure_;
  Leftover leftover_;
};

}  // namespace penstock
