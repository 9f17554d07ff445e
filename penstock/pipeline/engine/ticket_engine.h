#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/memory/byte_budget.h"
#include "penstock/observe/snapshot.h"
#include "penstock/pipeline/engine/loader_options.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/scheduler/scheduler.h"
#include "penstock/pipeline/scheduler/tuner.h"
#include "penstock/workers/supervisor.h"

namespace penstock {

// A Loader's options for its engine: checked, with defaults filled in.
struct EngineSettings {
  uint64_t seed = 0;
  uint32_t retries = 0;
  OnError on_error = OnError::kRaise;
  uint32_t workers = 0;  // 0: the consumer makes batches itself
  uint32_t places = 1;   // places for workers in the ring, including replacements of stuck threads
  bool processes = false;      // workers are processes
  bool shared_memory = false;  // for threads, too: a device's driver can pin it
  uint32_t queue = 10;
  uint64_t max_bytes = UINT64_MAX;
  bool ordered = true;
  bool pause_at_epochs = false;
  bool tune_workers = false, tune_queue = false;
  int64_t timeout_ns = -1;  // < 0: none
  // Not 0: workers of the caller's own make samples and write each row into its batch; a granule
  // has this many rows.
  uint32_t granule_rows = 0;
  bool whole_batches = false;  // a ticket is a whole batch: some workers are on other hosts
  bool supervised = true;      // workers may die, or be abandoned
};

// Runs tickets of any source with any kind of workers. Owns the ring, the memory, the scheduler,
// the supervisor of the workers, and the list of losses. The base of every Loader's engine.
// Threads: as the members; losses() from any thread.
class TicketEngine {
 public:
  // Requirements of a source's tickets.
  struct Needs {
    uint32_t rows = 1;                   // maximum per ticket
    uint32_t granule_rows = 0;           // rows per granule; 0: chosen per batch
    std::vector<uint32_t> lanes;         // ring sizes of the lanes beside the first
    bool describe_in_poll_only = false;  // Scheduler::Options::describe_in_poll_only
    bool raise = true;                   // Supervisor::Policy::raise
  };
  using MakeTickets = std::function<std::unique_ptr<Tickets>(Allocator&)>;

  // `discard`: as for Scheduler. Error kOutOfMemory.
  TicketEngine(const EngineSettings& settings, const Needs& needs, const MakeTickets& tickets,
               std::function<void(Task&)> discard);
  virtual ~TicketEngine() { scheduler_.drain(); }
  TicketEngine(const TicketEngine&) = delete;
  TicketEngine& operator=(const TicketEngine&) = delete;

  const EngineSettings& settings() const { return settings_; }
  TicketRing& ring() const { return *ring_; }
  Allocator& arena() const { return *arena_; }
  ByteBudget& budget() { return budget_; }
  LocalMemory& memory() { return memory_; }
  Supervisor* supervisor() { return supervisor_.get(); }  // nullptr: not supervised
  Scheduler& scheduler() { return scheduler_; }
  const Scheduler& scheduler() const { return scheduler_; }
  // This process is a fork of the one that constructed the engine.
  bool inherited() const { return arena_->region()->inherited(); }

  // Counts and lists samples that were skipped or replaced. Losses with an error are raised
  // instead. One thread at a time.
  void add_losses(const std::vector<Loss>& losses, uint64_t epoch);
  std::vector<LostItem> losses() const;

  // Of all workers, by stage.
  StageFigures worker_figures() const;
  // All counters, for the workers in the first `workers` places and for other places that did some
  // work. `kind`: WorkerSnapshot::kind.
  Snapshot snapshot(uint32_t workers, const std::string& kind) const;

 protected:
  Tickets& tickets() { return *tickets_; }
  // The longest queue that the tuner may choose.
  uint32_t longest_queue() const { return longest_queue_; }

 private:
  TicketRing::Shape shape_of(const Needs& needs) const;
  Scheduler::Options options_of(const Needs& needs) const;

  const EngineSettings settings_;
  const uint32_t longest_queue_;
  std::unique_ptr<TicketRing> ring_;
  std::unique_ptr<Allocator> arena_;
  ByteBudget budget_;
  LocalMemory memory_;
  std::unique_ptr<Tickets> tickets_;
  std::unique_ptr<Supervisor> supervisor_;
  Scheduler scheduler_;

  mutable std::mutex mutex_;  // guards losses_
  std::vector<LostItem> losses_;
};

}  // namespace penstock
