#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/observe/snapshot.h"
#include "penstock/pipeline/feed/feed.h"
#include "penstock/pipeline/feed/tuner.h"
#include "penstock/pipeline/loader.h"
#include "penstock/workers/supervisor.h"

namespace penstock {

// A Loader's options as its engine has them: checked, with defaults in place.
struct EngineSettings {
  uint64_t seed = 0;
  uint32_t retries = 0;
  OnError on_error = OnError::kRaise;
  uint32_t workers = 0;    // 0: the consumer makes batches itself
  uint32_t places = 1;     // of workers on the board, with those that stand in for stuck threads
  bool processes = false;  // workers are in other ones
  uint32_t queue = 10;
  uint64_t max_bytes = UINT64_MAX;
  bool ordered = true;
  bool pause_at_epochs = false;
  bool tune_workers = false, tune_queue = false;
  int64_t timeout_ns = -1;  // < 0: none
  bool supervised = true;   // workers may die, or be given up
};

// What every Loader's engine has, whoever works for it: the board, the memory, the feed, the
// supervisor of the workers, and the list of losses. Threads: as these say; losses() from any.
class FeedEngine {
 public:
  // What tickets of a source need.
  struct Needs {
    uint32_t rows = 1;            // of a ticket, at most
    uint32_t granule_rows = 0;    // that one worker makes; 0: as need be
    std::vector<uint32_t> lanes;  // of the board beside the first: their rings' sizes
    uint64_t max_bytes = UINT64_MAX;
    bool on_asking = false;  // Feed::Options::on_asking
    bool raise = true;       // Supervisor::Policy::raise
  };
  using MakeTickets = std::function<std::unique_ptr<Tickets>(Allocator&)>;

  // `discard`: Feed's. Error kOutOfMemory.
  FeedEngine(const EngineSettings& settings, const Needs& needs, const MakeTickets& tickets,
             std::function<void(Unit&)> discard);
  virtual ~FeedEngine() { feed_.drain(); }
  FeedEngine(const FeedEngine&) = delete;
  FeedEngine& operator=(const FeedEngine&) = delete;

  const EngineSettings& settings() const { return settings_; }
  Board& board() const { return *board_; }
  Allocator& arena() const { return *arena_; }
  LocalRows& rows() { return rows_; }
  Supervisor* supervisor() { return supervisor_.get(); }  // nullptr: not supervised
  Feed& feed() { return feed_; }
  const Feed& feed() const { return feed_; }
  // This process is a fork of the one that made it.
  bool inherited() const { return arena_->region()->inherited(); }

  // Counts a sample that was left out, or replaced, and lists it. One thread at a time.
  void add_loss(LostItem loss, bool replaced);
  std::vector<LostItem> losses() const;

  // Of all workers, by stage.
  StageFigures worker_figures() const;
  // What counters say; of the workers those in the first `workers` places, and others that did
  // something. `kind`: WorkerSnapshot::kind.
  Snapshot snapshot(uint32_t workers, const std::string& kind) const;

 protected:
  Tickets& tickets() { return *tickets_; }
  uint32_t longest_queue() const { return longest_queue_; }  // that the tuner may choose

 private:
  Board::Shape shape_of(const Needs& needs) const;
  Feed::Options options_of(const Needs& needs) const;

  const EngineSettings settings_;
  const uint32_t longest_queue_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Allocator> arena_;
  LocalRows rows_;
  std::unique_ptr<Tickets> tickets_;
  std::unique_ptr<Supervisor> supervisor_;
  Feed feed_;

  mutable std::mutex mutex_;  // of losses_
  std::vector<LostItem> losses_;
};

}  // namespace penstock
