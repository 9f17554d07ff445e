#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/pipeline/engine/loader_state.h"
#include "penstock/pipeline/engine/stream_reader.h"
#include "penstock/pipeline/plan/plan.h"
#include "penstock/pipeline/scheduler/scheduler.h"

namespace penstock {

// The tickets of a plan. If the plan has a stream, each ticket comes with a stream chunk of
// the stream reader. The stream's place before each recent ticket is stored, so that a withdrawn
// ticket can be made again. Consumer's thread only.
class PlanTickets : public Tickets {
 public:
  // `rows_in_place`: workers write each row into the batch, without collecting the rows before.
  PlanTickets(std::shared_ptr<const Plan> plan, bool rows_in_place);

  // For a plan with a stream, before any other call. `reader` must outlive this.
  void set_stream_reader(StreamReader* reader, Allocator& arena, size_t remembered);
  // Before any other call: something else describes the tickets. For a listed plan each ticket has
  // the positions of its rows as indices: two words (0; the number of bytes that follow), then a
  // word for each row.
  void set_describer(std::unique_ptr<Tickets> describer) { describer_ = std::move(describer); }

  std::optional<uint64_t> steps(uint64_t epoch, uint64_t base) override;
  Described describe(const Position& at, BatchEntry& entry) override;
  bool ready() override { return reader_ == nullptr || reader_->ready(); }
  uint64_t input_bytes() const override { return input_bytes_; }
  uint64_t work_bytes(uint64_t batch_bytes) const override { return collected_ ? batch_bytes : 0; }
  bool divisible() const override { return rows_ == Rows::kPlaced; }
  uint32_t streams() const override { return describer_ == nullptr ? 0 : describer_->streams(); }

  // Reports a finished batch. `fixed`: its rows have one fixed size.
  void saw(bool fixed);
  // Call it when granules of a batch did not match: from now on one worker makes each batch.
  void disable_granules() { rows_ = Rows::kTogether; }
  // The source's length changed, so an epoch may have another number of tickets.
  void length_changed() { steps_.reset(); }

  // For a plan with a stream:

  // The place in the stream where the ticket at `at` begins.
  StreamReader::Place place_at(const Position& at) const;
  // The ticket at `at` begins at that place.
  void restore(const Position& at, StreamReader::Place place);
  // Elements that were skipped before the ticket.
  std::vector<Failure> take_losses(const Position& at);
  // Elements that were skipped after the last ticket of an epoch that ended. Available after the
  // position has left that epoch.
  struct Leftover {
    uint64_t epoch = 0;
    std::vector<Failure> losses;
  };
  Leftover take_leftover(const Position& at);
  // The epoch was left before its end: its last losses are not reported.
  void drop_leftover() { leftover_ = {}; }
  // Drops all exceptions. Call it when no more tickets are described.
  void release();
  // The stream's failure in place of the ticket at the position. It is returned only once.
  std::optional<Failure> take_failure();

 private:
  struct Record {
    Position at;
    StreamReader::Place place;
    std::vector<Failure> losses;
  };

  // Whether a row's place in its batch is known before the other rows are made.
  enum class Rows : uint8_t {
    kTogether,  // no
    kUnknown,   // known after the first batch
    kPlaced,    // yes, as far as is known
  };

  std::shared_ptr<const Plan> plan_;
  Rows rows_ = Rows::kTogether;
  bool collected_ = false;         // rows are collected first, then copied into the batch
  std::optional<uint64_t> steps_;  // cached, for an epoch that begins at steps_base_
  uint64_t steps_base_ = 0;
  std::unique_ptr<Tickets> describer_;
  StreamReader* reader_ = nullptr;
  Allocator* arena_ = nullptr;
  uint64_t input_bytes_ = 0;  // of the largest stream chunk
  size_t remembered_ = 0;
  std::deque<Record> records_;  // of successive tickets; the last is the next one
  bool begun_ = false;          // the stream reader is at the last record
  std::optional<Failure> failure_;
  Leftover leftover_;
};

// Tickets of `count` streams in turn: ticket k is the next one of stream k mod count. Stream s
// belongs to worker s mod `workers`. The epoch goes on until every stream has ended.
class RoundRobinTickets : public Tickets {
 public:
  RoundRobinTickets(uint32_t count, uint32_t rows, uint32_t workers)
      : count_(count), rows_(rows), workers_(std::max(workers, 1u)) {}
  std::optional<uint64_t> steps(uint64_t, uint64_t) override { return std::nullopt; }
  Described describe(const Position& at, BatchEntry& entry) override {
    entry.rows = rows_;
    entry.stream = static_cast<uint32_t>((at.base + at.step) % count_);
    entry.owner = entry.stream % workers_;
    return Described::kPosted;
  }
  uint32_t streams() const override { return count_; }

 private:
  uint32_t count_, rows_, workers_;
};

}  // namespace penstock
