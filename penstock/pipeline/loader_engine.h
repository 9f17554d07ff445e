#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/feed.h"
#include "penstock/pipeline/loader.h"
#include "penstock/pipeline/loader_crew.h"
#include "penstock/pipeline/loader_worker.h"
#include "penstock/pipeline/tickets.h"
#include "penstock/workers/supervisor.h"

namespace penstock {

// A C++ Loader's inside: the board, the memory, the feed, and the threads that work for it. Shared
// by the Loader, its ranges and its threads, so that a thread that is stuck in user code finds
// everything in place when it comes back. Threads: as Loader says.
class LoaderEngine : public std::enable_shared_from_this<LoaderEngine>,
                     private LoaderWorker::Orders {
 public:
  LoaderEngine(std::unique_ptr<Source> source, const LoaderOptions& options);
  ~LoaderEngine() override;

  uint64_t begin_epoch();  // returns the iteration's serial
  uint64_t begin_steps();
  std::optional<Example> next();
  // For a range: ends it if another iteration began. across: the end of an epoch does not end it.
  std::optional<Example> next_of(uint64_t serial, bool across);

  uint64_t steps() const;
  LoaderState state() const;
  void restore(const LoaderState& state);
  std::optional<LoaderFailure> failure() const;
  LoaderStats stats() const;
  Snapshot snapshot() const;
  void close();
  bool closed() const { return board_->closed(); }

 private:
  Order order() const override;
  void check_open() const;
  void enter();
  void enter_epoch(uint64_t epoch);
  void leave_epoch();
  void settle();
  std::optional<Example> take_next();
  std::optional<Example> take();
  std::optional<Example> take_rows(Post& post);
  std::unique_ptr<Outcome> outcome_of(Unit& unit);
  void note(const std::vector<Outcome::Loss>& losses, uint64_t epoch);
  [[noreturn]] void raise(Unit& unit, uint32_t granule);
  uint64_t index_of(const Ticket& ticket, uint32_t row) const;

  LoaderOptions options_;
  uint32_t workers_;
  std::unique_ptr<Source> source_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Allocator> arena_;
  LocalRows rows_;
  mutable std::mutex order_mutex_;
  Order order_;
  IndexedTickets tickets_;
  std::unique_ptr<Supervisor> supervisor_;  // where there is a timeout
  std::unique_ptr<Feed> feed_;
  std::unique_ptr<LoaderWorker> inline_;
  LoaderCrew crew_;

  mutable std::mutex consumer_;  // of what follows, and of the feed
  uint64_t serial_ = 0;
  uint64_t version_ = 0;
  std::optional<uint64_t> running_;     // the epoch that an iteration is in
  bool resumed_ = false;                // the position was set by restore() or steps()
  std::optional<uint64_t> open_epoch_;  // whose begin hook ran, but not its end
  SampleLayout layout_;                 // of the last batch
  RowLayout columns_;

  mutable std::mutex notes_;
  std::vector<LostItem> losses_;
  std::optional<LoaderFailure> failure_;
};

}  // namespace penstock
