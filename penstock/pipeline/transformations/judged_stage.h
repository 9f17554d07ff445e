#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/mapped_input.h"

namespace penstock {

// The input of a stage that looks at each element with a predicate: whatever map takes that makes
// one boolean or number of an element; 0 is false. State: StreamInput's. One thread.
class JudgedInput {
 public:
  // `stage`: its title, for errors; outlives this, as all the others.
  JudgedInput(const Streamed& input, const Op& predicate, bool hidden, uint32_t operation,
              const std::string& stage, const Context& context)
      : mapped_(input, &predicate, hidden, operation, stage, context), stage_(stage) {}

  void begin(uint64_t epoch) { mapped_.begin(epoch); }
  bool more() { return mapped_.more(); }  // as StreamInput::more
  // Of the next element; one that failed, or of which the predicate failed or makes something else,
  // is passed on as one that failed.
  bool holds();
  StreamInput& input() { return mapped_.input(); }

  State save() const { return mapped_.save(); }
  void load(uint64_t epoch, const State& state) { mapped_.load(epoch, state); }

 private:
  MappedInput mapped_;
  const std::string& stage_;
  SpecRef checked_;
};

// A stage that passes some elements of its input on, going by what a predicate says of them. How
// many there are only running it tells.
class JudgedStage : public Streamed {
 public:
  // Error kInvalidArgument: the predicate cannot be applied to such elements.
  JudgedStage(const Built& input, Builder& builder, OpRef predicate, std::string title);

  SpecRef spec() const override { return input_.spec(); }
  std::optional<uint64_t> length() const override;
  bool python() const override { return predicate_->python() || input_.stream->python(); }

 protected:
  JudgedInput input(const Context& context) const {
    return {*input_.stream, *predicate_, input_.hidden, operation_, title_, context};
  }

 private:
  OpRef predicate_;
  uint32_t operation_;
  std::string title_;
  Builder::Carrying input_;
};

}  // namespace penstock
