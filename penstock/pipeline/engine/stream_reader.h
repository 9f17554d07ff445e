#pragma once

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
#include "penstock/memory/byte_budget.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/stages/gather_chunk.h"
#include "penstock/pipeline/stages/stage_clock.h"

namespace penstock {

// Reads a plan's stream and packs its elements into stream chunks for tickets, some ahead of the
// consumer.
//
// States:
// - resting: start() was not called, or the stream ended. start -> reading.
// - reading: the reader's thread reads the stream. A complete stream chunk -> reading; or full, if
//   `ahead` chunks wait for take(), or the budget has no space for another chunk. The end, or an
//   exception -> resting. start -> stopping.
// - full: take, bytes granted by the budget, or start -> reading.
// - stopping: start() was called meanwhile; the stream chunk being made is dropped. The reader's
//   thread -> reading, at the new place.
// - closed: run() returns, take() returns nothing more.
//
// Threads: start, take and ready on the consumer's thread; close on any thread. run on a thread of
// its own; without such a thread take() makes the stream chunk itself.
class StreamReader {
 public:
  // A place in an epoch: `used` elements after `state`, which is before element `ordinal`.
  struct Place {
    uint64_t ordinal = 0;
    uint64_t used = 0;
    std::shared_ptr<const State> state = nullptr;  // nullptr: the start of the epoch
  };
  struct Made {
    uint64_t rows = 0;
    uint64_t offset = 0;  // of the StreamChunk in the arena; the caller of take() releases it
    uint64_t bytes = 0;   // of the StreamChunk
    Place before, after;
    std::vector<Failure> losses;     // elements skipped before or among the rows
    std::optional<Failure> failure;  // instead of rows: an error to raise
    bool end = false;                // instead of rows: the stream ended
  };
  struct Options {
    uint32_t ahead = 2;
    uint64_t seed = 0;
    uint32_t retries = 0;
    bool skip = false;      // batches in front of the stream skip failed elements
    bool threaded = false;  // a thread will call run()
    // Not null: workers make costly elements in front of the stream's stages. Must outlive the
    // reader.
    ParallelMaps* parallel_maps = nullptr;
    // Called repeatedly while take() itself makes a stream chunk. If it throws, the stream chunk
    // fails with that exception, even if the stream handles it; start() at the chunk's place reads
    // the chunk again.
    std::function<void()> attend = nullptr;
  };

  // `budget`: of the whole loader; must outlive this. The reader holds the input elements of the
  // stream's stages, the stream chunks that wait for take(), and the one being made. Its minimum
  // are as many input elements as for the last stream chunk, and one stream chunk. run() calls
  // `there` on its thread when take() may return something new.
  StreamReader(std::shared_ptr<const Plan> plan, const Options& options, Allocator& arena,
               ByteBudget& budget, std::function<void()> there);
  ~StreamReader();

  // The next stream chunk begins at `place`.
  void start(uint64_t epoch, Place place);
  // The next stream chunk. Nothing: not ready yet.
  std::optional<Made> take();
  bool ready();
  void run();
  void close();
  // Releases everything that the stream's stages hold, including exceptions of user code. Call it
  // after close() and not during take(). Does nothing while a thread is in run().
  void release();
  // The memory of the stream's stages. bytes() may be called on any thread.
  const StreamMemory& memory() const { return memory_; }
  // The time spent in each stage so far. Any thread.
  const StageCounters& stages() const { return stages_; }

 private:
  struct Start {
    uint64_t epoch;
    Place place;
  };
  class Alone;  // the Watch over the stream's calls

  void attend();
  Made read(const std::optional<Start>& begin);
  void go_to(const Start& start);
  Made make();
  GatherChunk::Wanted rows_to_pull(uint64_t elements) const;
  bool may_make();
  void expect(uint64_t bytes);
  void count(uint64_t taken, const Made& stream_chunk);
  void wake();
  void drop(std::deque<Made>& made);

  std::shared_ptr<const Plan> plan_;
  Options options_;
  Allocator& arena_;
  std::function<void()> there_;

  ByteBudget::Holder holder_;
  // Reserves bytes for the first ticket, its stream chunk and its batch, until the ticket's
  // scheduler does; from the first element on, which gives the size.
  ByteBudget::Holder first_ticket_;

  // Used by the thread that makes stream chunks.
  StreamMemory memory_;
  Scratch scratch_;
  std::unique_ptr<Context::Watch> watch_;
  StageCounters stages_{};
  StageClock clock_;
  StageClock::Kind stream_chunks_;
  Context context_;
  std::unique_ptr<ElementReader> reader_;
  GatherChunk gathered_;
  uint64_t ordinal_ = 0;
  Place before_;                // the place before the current stream chunk
  std::optional<Made> failed_;  // a failure to return after the rows before it
  uint64_t input_bytes_ = 0;    // most memory of the stages during a stream chunk, decaying
  uint64_t chunk_bytes_ = 0;    // of the largest stream chunk, decaying
  bool first_ = true;           // no stream chunk was made yet
  // Thrown by attend() or user code during the current stream chunk.
  std::exception_ptr interruption_;

  std::mutex mutex_;
  std::condition_variable asked_;
  std::optional<Start> start_;  // set by start(), taken by the thread that reads
  uint64_t turn_ = 0;           // counts calls of start()
  bool resting_ = true;
  bool closed_ = false;
  bool running_ = false;  // a thread is in run()
  bool took_ = false;     // take() returned a stream chunk
  std::deque<Made> made_;
  std::optional<uint64_t> taken_;  // bytes taken from the budget for the next stream chunk
};

}  // namespace penstock
