#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/observe/counters.h"
#include "penstock/observe/trace.h"
#include "penstock/pipeline/feed/tuner.h"
#include "penstock/workers/board.h"
#include "penstock/workers/worker.h"

namespace penstock {

// Where an epoch stands: the next undelivered ticket.
struct Position {
  uint64_t epoch = 0;
  uint64_t base = 0;  // global batches of this epoch that earlier runs took (another world size)
  uint64_t step = 0;  // this rank's batches since then
  friend bool operator==(const Position&, const Position&) = default;
};

// Which tickets there are: the plan as the feed sees it. Called on the consumer's thread only.
class Tickets {
 public:
  virtual ~Tickets() = default;
  // Steps of an epoch, counted from `base`; nullopt where only running it tells (a stream).
  virtual std::optional<uint64_t> steps(uint64_t epoch, uint64_t base) = 0;
  enum class Described : uint8_t {
    kPosted,
    kEnd,     // the epoch ends before it (only where steps() does not know)
    kNotYet,  // nobody knows yet: ready() will say when to ask again
    kFailed,  // it cannot be made: kFailed once the position is there; asked again after a seek
  };
  // Fills in rows, owner, stream and explicit indices of the ticket at `at`.
  virtual Described describe(const Position& at, Post& post) = 0;
  // After kNotYet: whether describe() may have more to say. Whoever makes that so calls
  // Board::nudge_consumer().
  virtual bool ready() { return true; }
  // Streams whose end ends the epoch; 0: steps() knows.
  virtual uint32_t streams() const { return 0; }
  // Whether several workers may make one of its batches, as far as is known.
  virtual bool divisible() const { return false; }
  // Bytes of the arena that a ticket has beside its batch, at most, as far as is known.
  virtual uint64_t input_bytes() const { return 0; }
  // Bytes that a worker has beside a batch of so many while it makes it, at most.
  virtual uint64_t work_bytes(uint64_t) const { return 0; }
  // Bytes of the feed's budget that are in use for something else.
  virtual uint64_t spent_bytes() const { return 0; }
  // Tickets that there may be in any case.
  virtual uint32_t least() const { return 1; }
};

// The consumer's side of a board: posts the tickets of a plan within the queue's and the budget's
// bounds, and hands finished batches out in order (or as they come).
//
//   poll() ──kBatch──> look at the units ──> deliver()   the position moves on, new tickets go out
//          ──kEpochEnd─> begin_epoch() or seek()
//          ──kWait────> wait(), or work in line on head()
//
// Threads: one at a time for everything here.
class Feed {
 public:
  struct Options {
    uint32_t queue = 10;   // batches made and not yet delivered
    uint32_t workers = 1;  // and one more in each worker's hands
    uint64_t max_bytes = UINT64_MAX;
    bool ordered = true;
    bool pause_at_epochs = false;  // nothing of the next epoch is made before begin_epoch()
    uint32_t granule_rows = 1;     // of a granule; 0: as need be (BatchDivision)
    // Tickets are described when poll() asks for one, and never while a batch is handed out: where
    // that takes long and can be interrupted, nothing is lost by it.
    bool on_asking = false;
    // Workers (Board::set_active) and queue follow the consumer's pace, from those above on.
    // REQUIRED: the ring has room for the longest queue.
    std::optional<Tuner::Limits> tuning = std::nullopt;
  };
  enum class Poll { kBatch, kEpochEnd, kWait, kFailed };

  // `discard`: lets go of what a unit's result holds (packets' blocks, objects).
  Feed(Board& board, Allocator& arena, Tickets& tickets, const Options& options,
       std::function<void(Unit&)> discard);
  ~Feed();
  Feed(const Feed&) = delete;
  Feed& operator=(const Feed&) = delete;

  // `epoch`: the one that the consumer is in; kEpochEnd once the position has left it.
  Poll poll(uint64_t epoch);
  void wait(int64_t timeout_ns);
  // Posts what there is room for by now, and sees to it that it is made.
  void make_ahead();
  uint64_t in_flight() const { return board_.posted() - board_.head() - taken_; }  // tickets
  bool has_room() const { return in_flight() < window(); }
  // No more tickets of this epoch will be posted.
  bool exhausted() const {
    return held_ || failed_ || cursor_.epoch != position_.epoch || ended(cursor_);
  }
  // After kBatch: the post whose units are to be taken.
  Post& current() { return board_.post_at(current_); }
  uint64_t current_seq() const { return current_; }
  // The first granule of the current batch that is no result but a failure.
  std::optional<uint32_t> failed_granule();
  // The current batch's memory, as filled by the workers; the caller owns the lease now.
  Lease take_rows();
  // The current batch was given to the user (or, skipped: counted as lost).
  void deliver(uint64_t bytes, uint64_t samples);
  void skip();
  // It is no batch: its stream has no more (ResultKind::kEnd). The last stream's end is the
  // epoch's.
  void end_stream();
  // Its error was raised: the position stays, and everything in flight is taken back.
  void fail();

  // The post that poll() waits for (ordered), for working in line; nullopt if nothing is posted.
  std::optional<uint64_t> next_open();

  const Position& position() const { return position_; }
  // Tickets beyond the position that were delivered already (unordered feeds).
  const std::set<uint64_t>& ahead() const { return ahead_; }
  // Starts making the epoch at the position (where pause_at_epochs held it back).
  void begin_epoch();
  // Takes everything in flight back and goes on at `to`.
  void seek(const Position& to, std::set<uint64_t> ahead = {});
  // Waits until no worker is busy any more with what was taken back: before the dataset is changed.
  // False: not yet, after `timeout_ns` (< 0: none) or a wake-up; ask again.
  bool settle(int64_t timeout_ns);
  // Discards results that nobody took, which may own objects outside of the arena. At the end, when
  // the board is closed and its workers are gone.
  void drain();
  void set_version(uint64_t version) { version_ = version; }
  uint64_t version() const { return version_; }

  uint32_t depth();  // batches that are ready
  const DepthHistory& depths() const { return depths_; }
  uint64_t typical_bytes() const { return batch_bytes_; }
  bool sized() const { return sized_; }                                      // a batch was seen
  uint32_t queue() const { return queue_.load(std::memory_order_relaxed); }  // any thread

 private:
  void read_clock_on_asking();
  void tune();
  bool ended(const Position& at) const;  // no ticket of its epoch is left at or after `at`
  void fill();
  void fill_ahead() {
    if (!options_.on_asking) fill();
  }
  uint64_t window() const;
  uint64_t fitting(uint64_t left, uint64_t bytes, uint64_t work) const;
  uint32_t granules_of(uint32_t rows) const;
  uint64_t row_ns() const;
  std::optional<uint64_t> candidate();
  void moved_past(const Position& at);
  void clear_current();
  void retire(uint64_t seq);
  void release_memory(Post& post);
  void reap();
  void start_epoch_at(const Position& at);

  Board& board_;
  Allocator& arena_;
  Tickets& tickets_;
  Options options_;
  std::function<void(Unit&)> discard_;

  Position position_;
  std::set<uint64_t> ahead_;           // steps delivered out of order, this epoch
  Position cursor_;                    // the next ticket to post
  bool held_ = true;                   // begin_epoch() was not called yet for cursor_'s epoch
  std::optional<uint64_t> known_end_;  // steps of cursor_'s epoch, learnt from describe()
  std::set<uint32_t> streams_ended_;
  uint64_t version_ = 0;
  uint64_t current_ = 0;
  uint64_t taken_ = 0;        // posts beyond head that were taken already (unordered)
  uint64_t batch_bytes_ = 0;  // of the largest batch seen
  bool failed_ = false;       // the next ticket cannot be made
  bool starved_ = false;      // the next ticket could not be described yet
  bool sized_ = false;        // one was seen; it may count no bytes, being no arrays
  uint64_t slot_bytes_ = 0;   // room that a batch of slot_rows_ took, the largest yet
  uint32_t slot_rows_ = 0;
  std::vector<uint64_t> withdrawn_;  // posts whose units are still being worked on
  uint64_t asked_ns_ = 0;            // 0: the consumer is busy
  uint64_t given_ns_ = 0;
  bool late_ = false;     // what it asks for was not there at once
  bool quick_ = false;    // the last batches were asked for within microseconds
  uint32_t untimed_ = 0;  // batches since the clock was read
  uint64_t next_depth_ns_ = 0;
  std::atomic<uint32_t> queue_;
  std::optional<Tuner> tuner_;
  uint64_t tuned_ns_ = 0;  // when counters were looked at last, and what they were
  uint64_t tuned_delivered_ = 0;
  uint64_t tuned_busy_ns_ = 0;
  uint64_t held_up_ns_ = 0;            // the consumer, since then, by batches that were late
  uint32_t least_ready_ = UINT32_MAX;  // batches, since then
  TraceWriter trace_;
  DepthHistory depths_;
};

}  // namespace penstock
