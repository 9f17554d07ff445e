#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "penstock/pipeline/op.h"
#include "penstock/pipeline/stream_input.h"

namespace penstock {

// The input of a stage that looks at each element with a predicate: whatever map takes that makes
// one boolean or number of an element; 0 is false. State: StreamInput's. One thread.
class JudgedInput {
 public:
  // `stage`: its title, for errors; outlives this, as all the others.
  JudgedInput(const Streamed& input, const Op& predicate, uint32_t operation,
              const std::string& stage, const Context& context)
      : predicate_(predicate),
        operation_(operation),
        stage_(stage),
        input_(input, context),
        verdicts_(input_.context().scratch) {}

  void begin(uint64_t epoch);
  // As StreamInput::more. Error kInvalidArgument: the predicate makes something else.
  bool more();
  // Of the next element. One that failed, or of which the predicate failed, is failed() from more()
  // on, and this says true.
  bool holds() const { return holds_ >> input_.row() & 1; }
  StreamInput& input() { return input_; }

  State save() const { return input_.save(); }
  void load(uint64_t epoch, const State& state);

 private:
  void judge();
  void check(const ElementSpec& verdict) const;

  const Op& predicate_;
  uint32_t operation_;
  const std::string& stage_;
  StreamInput input_;
  Chunk verdicts_;
  SpecRef bound_, result_;
  std::unique_ptr<OpRun> run_;
  uint64_t epoch_ = 0;
  uint64_t holds_ = 0;   // by row of the input's chunk
  uint64_t judged_ = 0;  // elements of the epoch
};

// A stage that passes some elements of its input on, going by what a predicate says of them. How
// many there are only running it tells.
class JudgedStage : public Streamed {
 public:
  // Error kInvalidArgument: the predicate cannot be applied to such elements.
  JudgedStage(StreamedRef input, OpRef predicate, uint32_t operation, std::string title);

  SpecRef spec() const override { return input_->spec(); }
  std::optional<uint64_t> length() const override;
  bool python() const override { return predicate_->python() || input_->python(); }

 protected:
  JudgedInput input(const Context& context) const {
    return {*input_, *predicate_, operation_, title_, context};
  }

 private:
  StreamedRef input_;
  OpRef predicate_;
  uint32_t operation_;
  std::string title_;
};

}  // namespace penstock
