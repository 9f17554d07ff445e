#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/mapped_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

void check_verdict(const ElementSpec& verdict, const std::string& stage) {
  const auto& leaves = verdict.leaves();
  if (leaves.size() == 1 && leaves[0].kind == LeafKind::kDense && leaves[0].shape.empty()) return;
  throw Error(Code::kInvalidArgument, stage,
              "the predicate gives " + verdict.to_string() + ", and not one boolean");
}

bool verdict_is_true(const Chunk& verdicts, uint32_t row) {
  static constexpr std::byte kZeros[16] = {};
  return std::memcmp(verdicts.at(0, row), kZeros, verdicts.row_bytes(0)) != 0;
}

Summarize verdict_of(const std::string& stage) {
  return [stage](const Chunk& made, uint32_t row) {
    check_verdict(*made.spec(), stage);
    Summary summary{};
    summary[0] = std::byte{verdict_is_true(made, row)};
    return summary;
  };
}

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

bool PredicateInput::holds() {
  if (input().failed()) return true;
  if (mapped_.hidden()) return input().summary()[0] != std::byte{0};
  const Chunk& verdicts = mapped_.made();
  if (verdicts.spec() != checked_) {
    try {
      check_verdict(*verdicts.spec(), stage_);
    } catch (const Error&) {
      StreamInput& in = input();
      in.chunk().fail(in.row(), {stage_, in.ordinal() + in.row(), std::current_exception()});
      return true;
    }
    checked_ = verdicts.spec();
  }
  return verdict_is_true(verdicts, input().row());
}

// filter() and take_while(): the elements of the input for which the predicate holds, or only those
// before the first one for which it does not hold. The length is only known after running it.
class FilterStream : public Streamed {
 public:
  // Error kInvalidArgument: the predicate cannot be applied to the input's elements.
  FilterStream(const Built& input, Builder& builder, OpRef predicate, bool stops)
      : predicate_(std::move(predicate)),
        operation_(builder.operation()),
        title_(builder.title()),
        stops_(stops),
        input_(builder.as_stream_with(input, predicate_, verdict_of(title_), operation_, title_)) {
    if (SpecRef seen = spec()) (void)predicate_->result(*seen);
  }

  SpecRef spec() const override { return input_.spec(); }
  std::optional<uint64_t> length() const override {
    if (input_.stream->length() == uint64_t{0}) return 0;
    return std::nullopt;
  }
  bool python() const override { return predicate_->python() || input_.stream->python(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const FilterStream& stage, Context& context)
        : stops_(stage.stops_),
          input_(*stage.input_.stream, *stage.predicate_, stage.input_.hidden, stage.operation_,
                 stage.title_, context) {}

    void begin(uint64_t epoch) override {
      over_ = false;
      input_.begin(epoch);
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // left by a call that threw
      StreamInput& input = input_.input();
      while (!over_ && picked_.size() == 0 && input_.more()) {
        while (!over_ && input.left() > 0 && picked_.size() < most) {
          const bool holds = input_.holds();
          over_ = stops_ && !holds;
          holds ? picked_.add(input) : picked_.drop(input);
        }
      }
      return picked_.size() == 0 ? 0 : picked_.give(input.spec(), out);
    }
    void release() override { picked_.forget(); }
    State save() const override {
      if (!stops_) return input_.save();
      return {{"over", over_}, {"input", input_.save()}};
    }
    void load(uint64_t epoch, const State& state) override {
      if (!stops_) return input_.load(epoch, state);
      const State& over = member_of(state, "over");
      if (!over.is_boolean()) {
        throw Error(Code::kInvalidArgument, "restore", "'over' is neither true nor false");
      }
      over_ = over.get<bool>();
      input_.load(epoch, member_of(state, "input"));
    }

   private:
    const bool stops_;
    PredicateInput input_;
    PickedRows picked_;
    bool over_ = false;
  };

  OpRef predicate_;
  uint32_t operation_;
  std::string title_;
  bool stops_;
  Builder::Carrying input_;
};

Node::Ref filtered(Node::Ref input, OpRef predicate, const char* name, bool stops) {
  predicate = given(std::move(predicate), name, "operation");
  return make_node({
      .title = name + ("(" + predicate->title() + ")"),
      .inputs = {std::move(input)},
      .build =
          [predicate, stops](std::vector<Built> inputs, Builder& builder) {
            return Built::of(std::make_shared<FilterStream>(inputs[0], builder, predicate, stops));
          },
  });
}

}  // namespace

Node::Ref nodes::filter(Node::Ref input, OpRef predicate) {
  return filtered(std::move(input), std::move(predicate), "filter", false);
}

Node::Ref nodes::take_while(Node::Ref input, OpRef predicate) {
  return filtered(std::move(input), std::move(predicate), "take_while", true);
}

}  // namespace penstock
