#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/engine/loader_crew.h"
#include "penstock/pipeline/engine/outcome.h"
#include "penstock/pipeline/feed/feed.h"
#include "penstock/pipeline/loader.h"
#include "penstock/workers/supervisor.h"

namespace penstock {

// A C++ Loader's inside: the board, the memory, the feed, and the threads that work for it. What is
// fed (samples of a dataset, batches of a Dataset) is a subclass's business. Shared by the Loader,
// its ranges and its threads, so that a thread that is stuck in user code finds everything in place
// when it comes back. Threads: as Loader says.
class LoaderEngine : public std::enable_shared_from_this<LoaderEngine> {
 public:
  virtual ~LoaderEngine();

  uint64_t begin_epoch();  // returns the iteration's serial
  uint64_t begin_steps();
  std::optional<Example> next();
  // For a range. across: the end of an epoch does not end it. gave_all: set once the last batch of
  // its epoch was taken. There is one place, so one iteration at a time: restoring ends it, and a
  // later one overtakes it: Error kInvalidArgument, as what it would have given is gone.
  std::optional<Example> next_of(uint64_t serial, bool across, bool& gave_all);

  virtual uint64_t steps() const = 0;
  virtual LoaderState state() const = 0;
  virtual void restore(const LoaderState& state) = 0;
  std::optional<LoaderFailure> failure() const;
  LoaderStats stats() const;
  Snapshot snapshot() const;
  void close();
  bool closed() const { return board_->closed(); }
  // Of batches made ahead, where nobody says otherwise (LoaderOptions::max_bytes).
  static uint64_t usual_bytes();

 protected:
  // What a board and its feed need to know beforehand.
  struct Shape {
    std::unique_ptr<Tickets> tickets;
    uint64_t rows = 1;          // of a batch, at most
    uint32_t granule_rows = 1;  // that one worker makes at a time; 0: as need be
    bool pause_at_epochs = false;
    std::vector<uint32_t> lanes = {};  // of the board beside the first: their rings' sizes
    Tuner::Limits tuning = {};
    std::optional<uint64_t> max_bytes = {};  // of batches; nullopt: the options'
    bool policies = false;  // that may decide on what ran out of time: it is not raised at once
  };
  // `options` were checked by checked().
  LoaderEngine(Shape shape, const LoaderOptions& options);
  // With defaults in place. Error kInvalidArgument.
  static LoaderOptions checked(LoaderOptions options);
  // What of it the user left to the engine; `queue`: where nobody gave one. Before checked().
  static Tuner::Limits tuning_of(const LoaderOptions& options, bool queue);
  // Threads that make batches; 0: the consumer.
  static uint32_t workers_of(const LoaderOptions& options) { return *options.workers; }

  // ---- what is fed; called with `consumer_` held, save the first
  virtual std::unique_ptr<Fulfiller> make_worker() = 0;
  // The batch that the feed found; nothing if all of it was lost.
  virtual std::optional<Example> take() = 0;
  // What is left of what was taken from the feed.
  virtual std::optional<Example> take_held() { return std::nullopt; }
  virtual void drop_held() {}
  virtual void close_held() {}  // for good: the state stays
  virtual bool anything_held() const { return false; }
  // What works beside the workers.
  virtual void start_others() {}
  virtual void close_others() {}
  // After that, what they had open; with `consumer_` held.
  virtual void let_go_of_others() {}
  // The next ticket cannot be made: throws why.
  virtual void raise_failed() {}
  virtual void enter_epoch(uint64_t epoch);
  virtual void leave_epoch() {}
  // Of what is handed out next.
  virtual Position position() const { return feed_->position(); }
  // Of the user's passes, as epochs of the feed.
  virtual uint64_t epochs_per_pass() const { return 1; }
  // Where a row of a ticket came from, for errors.
  virtual uint64_t index_of(const Ticket& ticket, uint32_t row) const = 0;
  virtual void describe(Snapshot& snapshot) const = 0;  // title, batch size
  // What workers' time is counted as, by their places; and what the thread of a stream did.
  virtual std::vector<std::string> stages() const = 0;
  virtual std::vector<StageSnapshot> stream_stages() const { return {}; }

  // For who moves the position, or looks at it. Refuses in a forked child, where the lock may be
  // held for ever: by a thread that was in next() and is not there.
  std::unique_lock<std::mutex> consume() const;
  void check_ours() const;
  void check_open() const;
  void settle();  // nobody is busy any more with what was taken back
  void note(const std::vector<Outcome::Loss>& losses, uint64_t epoch);
  [[noreturn]] void raise(Unit& unit, uint32_t granule);
  [[noreturn]] void raise(LoaderFailure failure);  // and the position stays
  // The position was set from outside: the next iteration goes on there.
  void resume_at(const Position& at, std::set<uint64_t> ahead);

  const LoaderOptions options_;
  std::unique_ptr<Tickets> tickets_;
  std::unique_ptr<Board> board_;
  std::unique_ptr<Allocator> arena_;
  std::unique_ptr<Feed> feed_;
  mutable std::mutex consumer_;      // of the feed, and of what moves the position
  std::mutex closing_;               // of who closes, when no worker runs any more
  std::optional<uint64_t> running_;  // the epoch that an iteration is in

 private:
  void enter();
  std::optional<Example> take_next();
  std::vector<StageSnapshot> worker_stages() const;

  LocalRows rows_;
  std::unique_ptr<Supervisor> supervisor_;  // where there is a timeout
  std::unique_ptr<Fulfiller> inline_;
  LoaderCrew crew_;
  uint64_t serial_ = 0;   // of the current iteration; nobody's, if the last one was ended
  uint64_t latest_ = 0;   // of the last iteration that was begun
  uint32_t empty_ = 0;    // epochs in a row that gave nothing
  bool resumed_ = false;  // the position was set by restore() or steps()

  mutable std::mutex notes_;
  std::vector<LostItem> losses_;
  std::optional<LoaderFailure> failure_;
};

}  // namespace penstock
