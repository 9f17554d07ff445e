#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "penstock/pipeline/scheduler/scheduler.h"
#include "penstock/pipeline/stages/gather_chunk.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/stages/stage.h"
#include "penstock/pipeline/streams/parallel_map.h"

namespace penstock {

// Takes the elements of one parallel map in order, while workers make later ones. Each ticket is
// one element: an element of an indexed stage, by its position, or an element of a stream with a
// tail, whose input was read ahead. For streams the place before each pending element is stored, so
// save() is exact however far ahead the workers are. Runs on the stream reader's thread.
class ParallelMapReader : public ElementReader, private Tickets, private ParallelMaps::Reader {
 public:
  ParallelMapReader(uint32_t number, SpecRef spec, const Context& context);
  ~ParallelMapReader() override;

  void begin(uint64_t epoch) override;
  // Returns the elements that are ready; waits for at least one. Error kClosed: the ring was
  // closed.
  uint32_t next(uint32_t most, Chunk& out) override;
  void release() override;
  // {"index": i}, or {"ordinal": n, "state": the stream's state}, with SchemaChecker's members.
  // Independent of pending elements.
  State save() const override;
  void load(uint64_t epoch, const State& state) override;

 private:
  // An item read from the stream, in order: an element whose ticket is posted, or a failure.
  struct Read {
    State before;
    bool posted = false;
    std::vector<Failure> notes;      // losses before the element
    std::optional<Failure> failure;  // of the element
    std::exception_ptr thrown;       // the error that ended the stream
  };
  struct Taken {
    Block block;            // no rows: the element failed
    uint64_t position = 0;  // step of the ticket
    ParallelMapResult result;
  };

  std::optional<uint64_t> steps(uint64_t epoch, uint64_t base) override;
  Described describe(const Position& at, BatchEntry& entry) override;
  uint64_t input_bytes() const override;
  // The function's result, until it is written into its slot.
  uint64_t work_bytes(uint64_t element_bytes) const override { return element_bytes; }
  uint64_t kept_bytes() const override { return taken_bytes_; }
  void use_grant() override;
  bool ready() override { return !read_.empty() && !read_.front().posted; }

  State place() const;
  Described read(BatchEntry& entry);
  void wait();
  bool take_read();
  void take_ticket();
  ParallelMapResult failure_of(Task& task, uint64_t position);
  void go_to(uint64_t epoch, uint64_t step);

  ParallelMaps& maps_;
  const Built& made_;
  TicketRing& lane_;
  SpecRef spec_;
  SchemaChecker schema_;
  std::atomic<bool> granted_ = false;  // bytes that the scheduler waited for
  Scheduler scheduler_;
  uint64_t epoch_ = 0;
  uint64_t next_ = 0;  // index of the next element, counting failed ones; indexed stages only
  bool begun_ = true;  // Scheduler::begin_epoch() was called
  std::vector<Taken> taken_;  // elements that the last chunk has views of
  uint64_t taken_bytes_ = 0;  // bytes of taken_
  uint64_t input_bytes_ = 0;  // of the largest stream chunk
  SpecRef inferred_;          // spec of the last element

  // For a stream with a tail:
  Scratch scratch_;
  Context own_;
  std::unique_ptr<ElementReader> source_;
  std::optional<GatherChunk> gathered_;
  uint64_t ordinal_ = 0;  // of the next element to read
  std::deque<Read> read_;
};

}  // namespace penstock
