#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/pipeline/engine/loader_options.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/stages/stream_chunk.h"
#include "penstock/workers/ticket_runner.h"

namespace penstock {

// Runs a Dataset's chain for tickets. One thread.
//
// How a row gets into the batch:
// - All leaves have a fixed size, and no user code makes them: rows are made in the batch itself
//   (Indexed::in_place).
// - User code or an operation on images makes the rows: they are copied into the batch, a few at a
//   time, because no user code may run while a batch is written to.
// - Rows differ in size: they are collected, measured, and then copied.
//
// A ticket is a batch or a granule (some rows of a batch). Failed rows leave no gap: only the other
// rows are in the batch or granule. A raised error ends the ticket; if elements are delivered one
// by one, only that element fails. A granule is given up (ResultKind::kMismatch) if its rows do not
// match those of other granules, or have no known place in the batch: then one worker makes the
// whole batch, or finds the error.
class ChainWorker : public TicketRunner, private Context::Watch {
 public:
  // Delivers results: as objects of this process (Outcome), or encoded for another process.
  class Outlet {
   public:
    virtual ~Outlet() = default;
    virtual void rows(Slot& slot, uint64_t bytes, std::vector<Loss> losses) = 0;
    virtual void fail(Slot& slot, const Ticket& ticket, Failure failure) = 0;
    // For a whole item (LeafKind::kObject), of which the outlet takes ownership, and losses before
    // it.
    virtual void item(Slot& slot, const Ticket& ticket, void* item, std::vector<Loss> losses) = 0;
    // For a parallel map: the element is the ticket's row, or `result` has a failure.
    virtual void element(Slot& slot, const Ticket& ticket, uint64_t bytes,
                         ParallelMapResult result) = 0;
  };
  struct Options {
    uint64_t seed = 0;
    uint32_t retries = 0;
    bool skip = false;  // failed elements are skipped
    // `plan` is a parallel map's, and its tickets are elements for a stream's stage. Failures are
    // delivered undecided; the stream decides.
    bool parallel_map = false;
    // The worker runs in the consumer's own call: an interrupt there ends the ticket.
    bool in_line = false;
  };

  // `ring` and `scratch` must outlive the worker. `scratch` is used for one ticket at a time.
  ChainWorker(std::shared_ptr<const Plan> plan, const Options& options, TicketRing& ring,
              Scratch& scratch, std::unique_ptr<Outlet> outlet);

  void run(const Ticket& ticket, Slot& slot) override;

 private:
  bool progress(uint32_t row, uint32_t call) override;
  std::exception_ptr poisoned(uint32_t row, uint32_t call) override;
  void on_exception(bool again) override;
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
  TicketRing& ring_;
  std::unique_ptr<Outlet> outlet_;
  Scratch& scratch_;
  StageClock clock_;
  StageClock::Kind chunks_, settling_, writing_;
  Context context_;
  std::optional<CheckedRows> rows_;  // created by the first ticket
  SpecRef spec_;                     // nullptr: inferred
  bool bound_;
  Chunk chunk_;
  Collector collected_;
  BlockLayout layout_;  // of the last batch; the next one probably has the same
  SpecRef placed_;      // the spec that layout_ is for
  std::vector<uint64_t> positions_;

  // For the current ticket:
  Slot* slot_ = nullptr;
  uint32_t begin_ = 0;             // its first row
  At at_;                          // the place of its rows
  StreamChunk stream_chunk_;       // in a plan with a stream
  std::vector<Loss> losses_;       // failed rows
  std::vector<Loss> notes_;        // losses before rows that exist
  std::optional<Failure> failed_;  // the failure that ends the ticket
  std::exception_ptr interruption_;
  ParallelMapResult result_;  // of a parallel map
  // The poisoned calls of this ticket: how an earlier run of each ended, and its error.
  struct Ended {
    uint32_t row;
    TicketRing::Ending how;
    std::exception_ptr error;
  };
  std::vector<Ended> ended_;
};

}  // namespace penstock
