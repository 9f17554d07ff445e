#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "penstock/memory/batch_layout.h"
#include "penstock/pipeline/element/source.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/engine/sample_layout.h"
#include "penstock/pipeline/feed/order.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/workers/worker.h"

namespace penstock {

// Calls a dataset's get() for the samples of a ticket. One thread.
class LoaderWorker : public Fulfiller {
 public:
  struct Plan {
    bool samples = false;  // else an item is a whole batch
    OnError on_error = OnError::kRaise;
    uint32_t retries = 0;
  };
  // The order as it is now: asked for when a ticket is of another version of the plan.
  class Orders {
   public:
    virtual ~Orders() = default;
    virtual Order order() const = 0;
  };

  // All of them outlive the worker.
  LoaderWorker(const Plan& plan, Source& source, const Orders& orders, Board& board)
      : plan_(plan), source_(source), orders_(orders), board_(board), order_(orders.order()) {}

  void run(const Ticket& ticket, Slot& slot) override;

  // What its time is counted as, by their places.
  enum Stage : uint32_t { kGet, kRows };
  static std::vector<std::string> stages() { return {"get()", "rows"}; }

 private:
  std::exception_ptr attempt(const Ticket& ticket, uint64_t index, uint32_t worker, Example& out);
  std::exception_ptr sample(const Ticket& ticket, Slot& slot, uint32_t row, Example& out);
  std::exception_ptr replacement(const Ticket& ticket, Slot& slot, uint32_t row,
                                 std::exception_ptr error, Example& out);
  void run_item(const Ticket& ticket, Slot& slot);
  void run_rows(const Ticket& ticket, Slot& slot);
  void write_row(const Ticket& ticket, Slot& slot, uint32_t row, const Example& sample);
  [[noreturn]] void refuse_ragged(const Ticket& ticket, Slot& slot, uint32_t row,
                                  const Example& sample);
  void fail(Slot& slot, std::exception_ptr error, uint64_t index);

  Plan plan_;
  Source& source_;
  const Orders& orders_;
  Board& board_;
  Order order_;
  uint64_t version_ = 0;
  StageClock clock_;
  StageClock::Kind gets_, writes_;

  // Of the ticket in hand.
  std::vector<uint64_t> indices_;
  std::vector<Outcome::Loss> losses_;
  std::byte* base_ = nullptr;

  // The layout of the last batch, which the next one very likely shares.
  SampleLayout layout_;
  RowLayout rows_;
};

}  // namespace penstock
