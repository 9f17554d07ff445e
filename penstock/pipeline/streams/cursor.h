#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "penstock/memory/allocator.h"
#include "penstock/pipeline/plan.h"
#include "penstock/pipeline/stages/gather_parcel.h"
#include "penstock/pipeline/stages/stage_clock.h"

namespace penstock {

// Goes through a plan's stream and packs what it gives into parcels, some ahead of being asked.
//
// | state    | meaning                                 | moved by, to
// | resting  | nothing was asked of it                 | start -> reading
// | reading  | its thread is in the stream             | a parcel is made -> reading, or full if
// |          |                                         | `ahead` wait, or `max_bytes` of them, or
// |          |                                         | there is no room for one; the end, an
// |          |                                         | exception -> resting; start -> stopping
// | full     | waits for take                          | take, also if it finds none -> reading;
// |          |                                         | start -> reading
// | stopping | start came meanwhile: what the stream   | its thread -> reading, at the new place
// |          | gives is dropped                        |
// | closed   | run returns, take gives nothing more    |
//
// Threads: start, take and ready are the consumer's; run is a thread of its own, or nobody's, and
// then take makes the parcel itself; close may come from any.
class Cursor {
 public:
  // Where a cursor is in an epoch: `used` elements behind the stream's `state`, which is at element
  // `ordinal`.
  struct Place {
    uint64_t ordinal = 0;
    uint64_t used = 0;
    std::shared_ptr<const State> state = nullptr;  // nullptr: the front
  };
  struct Made {
    uint64_t rows = 0;
    uint64_t offset = 0;  // in the arena, of the Parcel; whoever takes it releases it
    uint64_t bytes = 0;   // there
    Place before, after;
    std::vector<Failure> losses;     // left out on the way to the rows
    std::optional<Failure> failure;  // instead of rows: it is to be raised
    bool end = false;                // instead of rows
  };
  struct Options {
    uint32_t ahead = 2;
    uint64_t seed = 0;
    uint32_t retries = 0;
    bool skip = false;      // batches in front of the stream leave out what fails
    bool threaded = false;  // somebody will call run()
    // Where workers make what is costly in front of the stream's stages; outlives the cursor.
    const Sections* sections = nullptr;
    // Of what the stream's stages have of their inputs, and of parcels that wait for take(), but
    // for one of any size.
    uint64_t max_bytes = UINT64_MAX;
    // Of everything that the loader may have: a parcel that nobody waits for is made only if all of
    // it has room there.
    uint64_t all_bytes = UINT64_MAX;
    // Of a take() that makes the parcel itself: called again and again meanwhile. What it throws is
    // that parcel's failure, whatever the stream makes of it; start() at its front reads it again.
    std::function<void()> attend = nullptr;
  };

  // How `max_bytes` is shared out between batches, with the elements that their tickets take along,
  // what the cursor has in hand and ready for further ones, and what workers make in front of
  // streams' stages. What is needed beyond the last two's (excess()) comes off the first.
  struct Shares {
    uint64_t all, feed, cursor, sections;
  };
  static Shares shares_of(uint64_t max_bytes, bool streams, bool sections);

  // `there` is called by run()'s thread when take() has something new to say.
  Cursor(std::shared_ptr<const Plan> plan, const Options& options, Allocator& arena,
         std::function<void()> there);
  ~Cursor();

  // The next parcel begins there.
  void start(uint64_t epoch, Place place);
  // Nothing: not yet.
  std::optional<Made> take();
  bool ready();
  // A batch was made of so much.
  void saw_batch(uint64_t bytes);
  void run();
  void close();
  // Lets go of what the stream's stages hold, exceptions of user code among it. After close(); does
  // nothing while a thread is in run(). Nobody is in take().
  void let_go();
  // What the stream's stages have. Any thread may ask for its bytes.
  const StreamMemory& memory() const { return memory_; }
  // Bytes beyond the cursor's and the sections' shares, which cannot be done without: one element
  // of each input, and one parcel. Any thread.
  uint64_t excess() const;
  // What was done in each stage so far. Any thread.
  const StageCounters& stages() const { return stages_; }

 private:
  struct Start {
    uint64_t epoch;
    Place place;
  };
  class Alone;  // nobody watches over what the stream calls

  void attend();
  Made read(const std::optional<Start>& begin);
  void go_to(const Start& start);
  Made make();
  GatherParcel::Wanted so_many(uint64_t elements) const;
  bool full() const;
  uint64_t needed() const;
  uint64_t feed_bytes() const;
  uint64_t room_for_sections() const;
  static void learn(std::atomic<uint64_t>& most, uint64_t bytes);
  void keep(Made parcel);
  void drop(std::deque<Made>& made);

  std::shared_ptr<const Plan> plan_;
  Options options_;
  Allocator& arena_;
  std::function<void()> there_;

  // Whoever makes parcels.
  StreamMemory memory_;
  Scratch scratch_;
  std::unique_ptr<Context::Watch> watch_;
  StageCounters stages_{};
  StageClock clock_;
  StageClock::Kind parcels_;
  Context context_;
  std::unique_ptr<StreamReader> reader_;
  GatherParcel gathered_;
  uint64_t ordinal_ = 0;
  Place before_;                     // where the parcel in work begins
  std::optional<Made> failed_;       // what comes after the rows that were before it
  std::exception_ptr interruption_;  // of the parcel in work, by attend or user code

  std::mutex mutex_;
  std::condition_variable asked_;
  std::optional<Start> start_;  // to be begun
  uint64_t turn_ = 0;           // counts starts
  bool resting_ = true;
  bool closed_ = false;
  bool wanted_ = false;   // take() found nothing
  bool running_ = false;  // a thread is in run()
  std::deque<Made> made_;
  std::atomic<uint64_t> made_bytes_ = 0;  // of these; written with the lock
  std::atomic<uint64_t> most_bytes_ = 0;  // of one
  std::atomic<uint64_t> batch_bytes_ = 0;
  std::atomic<uint64_t> in_hand_ = 0;  // that the stream had when the last one was made
};

}  // namespace penstock
