#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/streams/stream_input.h"

namespace penstock {

// The input of a stage that evaluates an operation on each element: filter's predicate, unique's
// key. State: StreamInput's. One thread.
class MappedInput {
 public:
  // `op` nullptr: the stage uses the elements themselves. `stage`: the stage's title, for errors.
  // `hidden`: workers evaluated the operation, and summary() has the result. All references must
  // outlive this.
  MappedInput(const Streamed& input, const Op* op, bool hidden, uint32_t operation,
              const std::string& stage, const Context& context)
      : op_(op),
        hidden_(hidden),
        operation_(operation),
        stage_(stage),
        input_(input, context, hidden),
        made_(input_.context().scratch) {}

  void begin(uint64_t epoch);
  // As StreamInput::more. If the operation failed for the next element, the element is failed()
  // from then on.
  bool more();
  // The chunk with the operation's result for the next element, in row input().row(), unless it
  // failed.
  Chunk& made() {
    if (op_ == nullptr) return input_.chunk();
    return apart_.empty() ? made_ : *apart_[input_.row()];
  }
  bool hidden() const { return hidden_; }
  StreamInput& input() { return input_; }
  const StreamInput& input() const { return input_; }

  State save() const { return input_.save(); }
  void load(uint64_t epoch, const State& state);

 private:
  void apply();
  void run(uint32_t first, uint32_t end, Chunk& made);

  const Op* op_;
  const bool hidden_;
  uint32_t operation_;
  const std::string& stage_;
  StreamInput input_;
  Chunk made_;
  // One chunk per row, used if the results' schemas differ.
  std::vector<std::unique_ptr<Chunk>> apart_;
  SpecRef bound_, result_;
  std::unique_ptr<OpRun> run_;
  uint64_t epoch_ = 0;
  uint64_t applied_ = 0;  // number of the epoch's elements that the operation ran on
};

}  // namespace penstock
