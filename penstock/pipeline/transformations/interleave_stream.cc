#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/base/random.h"
#include "penstock/pipeline/element/example_rows.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

class FunctionOpener : public Opener {
 public:
  explicit FunctionOpener(Opening open) : open_(std::move(open)) {}
  Opened open(const Keys&, const Chunk& in, uint32_t row, Context&) const override {
    return {open_(viewed(in, row))};
  }

 private:
  Opening open_;
};

class InterleaveStream : public StreamMapped {
 public:
  InterleaveStream(StreamedRef input, std::shared_ptr<const Opener> open, uint64_t cycle,
                   uint64_t block, std::string title, Builder& builder)
      : StreamMapped(std::move(input)),
        open_(std::move(open)),
        cycle_(cycle),
        block_(block),
        title_(std::move(title)),
        operation_(builder.operation()),
        files_(builder.files()),
        policy_(builder.policy()) {}

  SpecRef spec() const override { return nullptr; }
  std::optional<uint64_t> length() const override {
    if (input()->length() == uint64_t{0}) return 0;
    return std::nullopt;
  }
  bool python() const override { return open_->python() || input()->python(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  // A plan that was opened from an element.
  struct Open {
    State outer;  // state of the input at the element
    Builder builder;
    StreamedRef stage;
    std::unique_ptr<StreamInput> input;
  };

  class Reader : public ElementReader {
   public:
    Reader(const InterleaveStream& stage, Context& context)
        : stage_(stage),
          context_(context),
          outer_(*stage.input(), context),
          places_(stage.cycle_) {}

    void begin(uint64_t epoch) override {
      close(epoch);
      outer_.begin(epoch);
    }

    // Rows of several plans' chunks go into one chunk, until one of the plans must be read further.
    uint32_t next(uint32_t most, Chunk& out) override {
      const uint32_t count = pick(most, out);
      if (count != 0) {
        for (Failure& lost : lost_) out.note(0, std::move(lost));
        lost_.clear();
      } else if (!lost_.empty()) {
        // The noted losses had no further element to be noted on.
        out.reset(nullptr, 1);
        out.lose(0, std::exchange(lost_, {}));
        return 1;
      }
      return count;
    }

    void release() override { picked_.forget(); }
    State save() const override {
      State places = State::array();
      for (const auto& place : places_) {
        places.push_back(place == nullptr
                             ? State()
                             : State{{"outer", place->outer}, {"inner", place->input->save()}});
      }
      State state = {{"place", place_},
                     {"given", given_},
                     {"places", std::move(places)},
                     {"input", outer_.save()}};
      schema_.save(state);
      return state;
    }

    void load(uint64_t epoch, const State& state) override {
      const uint64_t place = count_in(state, "place"), given = count_in(state, "given");
      const State& places = member_of(state, "places");
      const State& input = member_of(state, "input");
      if (!places.is_array() || places.size() != places_.size() || place >= places_.size() ||
          given >= stage_.block_) {
        throw Error(Code::kInvalidArgument, "restore", "the state is of another cycle");
      }
      close(epoch);
      for (place_ = 0; place_ < places.size(); ++place_) {
        if (places[place_].is_null()) continue;
        outer_.load(epoch, member_of(places[place_], "outer"));
        if (!outer_.more()) {
          throw Error(Code::kInvalidArgument, "restore",
                      "the element that a plan was opened from is not there any more");
        }
        if (auto failure = open()) std::rethrow_exception(failure->error);
        places_[place_]->input->load(epoch, member_of(places[place_], "inner"));
      }
      place_ = place;
      given_ = given;
      outer_.load(epoch, input);
      lost_.clear();  // already delivered
      schema_.load(state);
    }

   private:
    uint32_t pick(uint32_t most, Chunk& out) {
      picked_.forget();  // left by a call that threw
      while (picked_.size() < most) {
        std::unique_ptr<Open>& place = places_[place_];
        if (place != nullptr) {
          if (place->input->left() == 0) {
            if (picked_.size() > 0) break;
            if (!place->input->more()) {
              place.reset();
              --open_;
              move_on();
              continue;
            }
          }
          const bool placed = place->input->placed();
          picked_.add(*place->input);
          if (placed && ++given_ == stage_.block_) move_on();
        } else if (outer_.left() > 0 || (picked_.size() == 0 && outer_.more())) {
          if (picked_.size() > 0) break;
          if (std::optional<Failure> failure = open()) {
            out.reset(nullptr, 1);
            out.fail(0, std::move(*failure));
            return 1;
          }
        } else if (picked_.size() > 0) {
          break;
        } else if (open_ == 0) {
          return 0;
        } else {
          move_on();
        }
      }
      return picked_.give(nullptr, out, schema_, stage_.title_);
    }

    void close(uint64_t epoch) {
      picked_.forget();
      lost_.clear();
      schema_.begin();
      epoch_ = epoch;
      for (auto& place : places_) place.reset();
      open_ = place_ = given_ = 0;
    }

    void move_on() {
      place_ = place_ + 1 == places_.size() ? 0 : place_ + 1;
      given_ = 0;
    }

    // Opens the plan of the input's next element at place_. Returns the element's failure, if it
    // failed.
    std::optional<Failure> open() {
      StageClock::Part part(context_.clock);
      Chunk& in = outer_.chunk();
      const uint32_t row = outer_.row();
      const uint64_t ordinal = outer_.ordinal() + row;
      for (Failure& lost : in.take_notes(row)) lost_.push_back(std::move(lost));
      if (outer_.failed()) {
        outer_.use();
        return in.take_failure(row);
      }
      context_.check_open();
      auto opened = std::make_unique<Open>(
          Open{outer_.save(), Builder(stage_.files_, false, nullptr, stage_.policy_), {}, {}});
      std::optional<Failure> failure;
      try {
        const std::array<uint64_t, 1> position = {ordinal};
        Opener::Opened made = stage_.open_->open(
            Keys(context_, epoch_, position, stage_.operation_), in, row, outer_.context());
        failure = std::move(made.failure);
        if (!failure && made.plan == nullptr) {
          throw Error(Code::kInvalidArgument, stage_.title_, "gave no dataset");
        }
        if (!failure) opened->stage = opened->builder.as_stream(opened->builder.build(*made.plan));
      } catch (...) {
        failure = Failure{{}, 0, std::current_exception()};
      }
      if (failure) {
        failure->stage = stage_.title_;
        failure->position = ordinal;
        outer_.use();
        return failure;
      }
      // Each element's plan has its own random numbers.
      Context context = context_;
      context.build_seed = context_.build_seed.value_or(context_.seed);
      context.seed = derive_key(context_.seed, ordinal, KeyUse::kInner);
      opened->input = std::make_unique<StreamInput>(*opened->stage, context);
      opened->input->begin(epoch_);
      places_[place_] = std::move(opened);
      ++open_;
      given_ = 0;
      outer_.use();
      return std::nullopt;
    }

    const InterleaveStream& stage_;
    Context& context_;
    StreamInput outer_;
    std::vector<std::unique_ptr<Open>> places_;
    PickedRows picked_;
    SchemaChecker schema_{nullptr};
    std::vector<Failure> lost_;  // losses noted on elements that plans were opened from
    uint64_t epoch_ = 0;
    uint64_t open_ = 0;   // number of places with an open plan
    uint64_t place_ = 0;  // the current place
    uint64_t given_ = 0;  // elements given in this turn
  };

  std::shared_ptr<const Opener> open_;
  uint64_t cycle_, block_;
  std::string title_;
  uint32_t operation_;
  std::shared_ptr<FileSystem> files_;
  FailurePolicy policy_;  // for the plans that it opens
};

Node::Ref opened_in_turns(Node::Ref input, std::string title, std::shared_ptr<const Opener> open,
                          uint64_t cycle, uint64_t block) {
  return make_node({
      .title = std::move(title),
      .inputs = {std::move(input)},
      .build =
          [open = std::move(open), cycle, block](std::vector<Built> inputs, Builder& builder) {
            return Built::of(std::make_shared<InterleaveStream>(
                builder.as_stream(inputs[0]), open, cycle, block, builder.title(), builder));
          },
  });
}

}  // namespace

Node::Ref nodes::interleave(Node::Ref input, std::string name, Opening open, uint64_t cycle,
                            uint64_t block) {
  return interleave(std::move(input), std::move(name),
                    std::make_shared<FunctionOpener>(std::move(open)), cycle, block);
}

Node::Ref nodes::interleave(Node::Ref input, std::string name, std::shared_ptr<const Opener> open,
                            uint64_t cycle, uint64_t block) {
  name = utf8_name(std::move(name), "interleave");
  if (cycle == 0 || cycle > 65'536) {
    throw Error(Code::kInvalidArgument, "interleave",
                "cycle is " + std::to_string(cycle) + "; give 1 to 65536");
  }
  if (block == 0) throw Error(Code::kInvalidArgument, "interleave", "block is 0; give 1 or more");
  return opened_in_turns(std::move(input),
                         "interleave(" + name + ", cycle=" + std::to_string(cycle) +
                             ", block=" + std::to_string(block) + ")",
                         std::move(open), cycle, block);
}

Node::Ref nodes::flat_map(Node::Ref input, std::string name, Opening open) {
  return flat_map(std::move(input), std::move(name),
                  std::make_shared<FunctionOpener>(std::move(open)));
}

Node::Ref nodes::flat_map(Node::Ref input, std::string name, std::shared_ptr<const Opener> open) {
  return opened_in_turns(std::move(input),
                         "flat_map(" + utf8_name(std::move(name), "flat_map") + ")",
                         std::move(open), 1, 1);
}

}  // namespace penstock
