#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/mapped_input.h"

namespace penstock {

// The input of a stage with a predicate: an operation whose result is one boolean or number; 0 is
// false. State: StreamInput's. One thread.
class PredicateInput {
 public:
  // `stage`: the stage's title, for errors. All references must outlive this.
  PredicateInput(const Streamed& input, const Op& predicate, bool hidden, uint32_t operation,
                 const std::string& stage, const Context& context)
      : mapped_(input, &predicate, hidden, operation, stage, context), stage_(stage) {}

  void begin(uint64_t epoch) { mapped_.begin(epoch); }
  bool more() { return mapped_.more(); }  // as StreamInput::more
  // The predicate's value for the next element. An element becomes a failure if the predicate
  // failed or returned something else. True for failures, so that they are passed on.
  bool holds();
  StreamInput& input() { return mapped_.input(); }

  State save() const { return mapped_.save(); }
  void load(uint64_t epoch, const State& state) { mapped_.load(epoch, state); }

 private:
  MappedInput mapped_;
  const std::string& stage_;
  SpecRef checked_;
};

// A stage that passes on those elements of its input for which a predicate decides so. Its length
// is only known after running it.
class PredicateStage : public Streamed {
 public:
  // Error kInvalidArgument: the predicate cannot be applied to the input's elements.
  PredicateStage(const Built& input, Builder& builder, OpRef predicate, std::string title);

  SpecRef spec() const override { return input_.spec(); }
  std::optional<uint64_t> length() const override;
  bool python() const override { return predicate_->python() || input_.stream->python(); }

 protected:
  PredicateInput input(const Context& context) const {
    return {*input_.stream, *predicate_, input_.hidden, operation_, title_, context};
  }

 private:
  OpRef predicate_;
  uint32_t operation_;
  std::string title_;
  Builder::Carrying input_;
};

}  // namespace penstock
