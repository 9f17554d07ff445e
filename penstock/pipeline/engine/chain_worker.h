#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/plan.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/stages/parcel.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/workers/worker.h"

namespace penstock {

// Runs a Dataset's chain for tickets. One thread.
//
// Rows whose places are known beforehand (every leaf fixed, nothing costly in the chain) are made
// right where the batch wants them. What user code makes is copied into the batch once, a few rows
// at a time, since no user code may run while a batch is written to. Rows that differ in size are
// collected, measured, and then copied.
//
// A batch is one ticket, or several: then each is some of its rows (a granule). Rows that are lost
// are closed up: the batch, or the granule, is as many rows as are left. What is raised ends the
// ticket, save where its elements are handed out one by one: there it is that element's. A granule
// whose rows do not go with the others', or have no place before all others are known, is given up
// (ResultKind::kApart): then one worker makes the batch, or finds what is wrong with it.
class ChainWorker : public Fulfiller, private Context::Watch {
 public:
  // How results leave: as objects of this process (Outcome), or encoded for another one.
  class Outlet {
   public:
    virtual ~Outlet() = default;
    virtual void rows(Slot& slot, uint64_t bytes, std::vector<Outcome::Loss> losses) = 0;
    virtual void fail(Slot& slot, const Ticket& ticket, Failure failure) = 0;
    // A whole item (LeafKind::kObject), which is the outlet's from now on, and what was lost on the
    // way to it.
    virtual void item(Slot& slot, const Ticket& ticket, void* item,
                      std::vector<Outcome::Loss> losses) = 0;
    // Of a section: the element is the ticket's row, or there is a failure instead.
    virtual void element(Slot& slot, const Ticket& ticket, uint64_t bytes,
                         SectionResult result) = 0;
  };
  struct Options {
    uint64_t seed = 0;
    uint32_t retries = 0;
    bool skip = false;  // an element that fails is left out
    // The tickets are elements for a stream's stage: what went wrong with one is handed over as it
    // is, for others to decide. `plan` is a section's.
    bool section = false;
    // It works in the consumer's own call: an interruption there ends the ticket.
    bool in_line = false;
  };

  // `board` outlives the worker, and so does `scratch`: of whoever runs one ticket at a time.
  ChainWorker(std::shared_ptr<const Plan> plan, const Options& options, Board& board,
              Scratch& scratch, std::unique_ptr<Outlet> outlet);

  void run(const Ticket& ticket, Slot& slot) override;

 private:
  bool progress(uint32_t row, uint32_t call) override;
  std::exception_ptr poisoned(uint32_t row, uint32_t call) override;
  void threw(bool again) override;
  bool interrupted(const std::exception_ptr& by) override;

  void name_if_ended(Failure& failure) const;
  uint64_t index_of(uint32_t row) const;
  std::string place_of_row(uint32_t row, uint32_t worker) const;
  At locate(const Ticket& ticket, uint64_t row, std::span<uint64_t> positions) const;
  void make(const Ticket& ticket, Slot& slot);
  void run_bound(const Ticket& ticket, Slot& slot);
  void copy_rows(const Ticket& ticket, Slot& slot, std::byte* base);
  void copy_below(size_t level, const At& at, std::span<uint64_t> positions, std::byte* base,
                  uint32_t row);
  void run_collected(const Ticket& ticket, Slot& slot);
  void write_collected(const Ticket& ticket, Slot& slot);
  void run_placed(const Ticket& ticket, Slot& slot);
  uint32_t rows_at_once() const;
  void take_up(uint32_t row);
  bool fetch(const Ticket& ticket, uint32_t row, uint32_t count);
  bool gather(const Ticket& ticket);
  bool note_failures(const Ticket& ticket, Chunk& chunk, uint32_t first);
  void finish(const Ticket& ticket, Slot& slot, uint64_t bytes);
  void finish_item(const Ticket& ticket, Slot& slot, void* item);

  std::shared_ptr<const Plan> plan_;
  Options options_;
  Board& board_;
  std::unique_ptr<Outlet> outlet_;
  Scratch& scratch_;
  StageClock clock_;
  StageClock::Kind chunks_, settling_, writing_;
  Context context_;
  std::optional<CheckedRows> rows_;  // made with the first ticket
  SpecRef spec_;                     // known beforehand, or nullptr
  bool bound_;
  Chunk chunk_;
  Collector collected_;
  BlockLayout layout_;  // of the last batch, which the next one very likely shares
  SpecRef placed_;      // whose layout that is, where rows were told it
  std::vector<uint64_t> positions_;

  // Of the ticket in hand.
  Slot* slot_ = nullptr;
  uint32_t begin_ = 0;                 // its first row
  At at_;                              // where its rows are
  Parcel parcel_;                      // of a plan with a stream
  std::vector<Outcome::Loss> losses_;  // rows that are not there
  std::vector<Outcome::Loss> notes_;   // what was lost on the way to rows that are
  std::optional<Failure> failed_;      // what ends it
  std::exception_ptr interruption_;
  SectionResult result_;  // of a section
  // Calls that were poisoned, how, and what each failed with.
  struct Ended {
    uint32_t row;
    Board::Ending how;
    std::exception_ptr error;
  };
  std::vector<Ended> ended_;
};

// A worker of the plan and of all of its sections: of every lane of the board. `outlet` makes one
// for each.
std::unique_ptr<Fulfiller> worker_of_plan(
    const std::shared_ptr<const Plan>& plan, const ChainWorker::Options& options, Board& board,
    const std::function<std::unique_ptr<ChainWorker::Outlet>()>& outlet);

}  // namespace penstock
