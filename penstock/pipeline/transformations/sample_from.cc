#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/base/random.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/inputs.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {

namespace {

class SampleFrom : public StreamInputs {
 public:
  SampleFrom(std::vector<StreamedRef> inputs, std::vector<double> weights, uint64_t seed,
             bool stop_on_empty)
      : StreamInputs(std::move(inputs), "sample_from"),
        weights_(std::move(weights)),
        seed_(seed),
        stop_on_empty_(stop_on_empty) {}

  std::optional<uint64_t> length() const override {
    if (stop_on_empty_) return std::nullopt;
    std::vector<StreamedRef> drawn;
    for (size_t i = 0; i < inputs().size(); ++i) {
      if (weights_[i] != 0) drawn.push_back(inputs()[i]);
    }
    return total_length(drawn);
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const SampleFrom& stage, Context& context) : stage_(stage) {
      for (const StreamedRef& input : stage.inputs()) {
        inputs_.push_back(std::make_unique<StreamInput>(*input, context));
      }
    }

    void begin(uint64_t epoch) override {
      enter(epoch);
      for (const auto& input : inputs_) input->begin(epoch);
    }

    // Rows of several inputs' chunks go into one chunk, until one of the inputs must be read
    // further.
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // left by a call that threw
      while (picked_.size() < most) {
        const std::optional<size_t> drawn = draw();
        if (!drawn) break;
        StreamInput& input = *inputs_[*drawn];
        if (input.left() == 0) {
          if (picked_.size() > 0) break;  // the next call repeats this draw
          if (!input.more()) {
            if (stage_.stop_on_empty_) return 0;
            over_[*drawn] = true;
            continue;
          }
        }
        if (input.placed()) ++draws_;
        picked_.add(input);
      }
      return picked_.size() == 0 ? 0 : picked_.give(stage_.spec(), out, schema_, "sample_from");
    }

    void release() override { picked_.forget(); }
    State save() const override {
      State inputs = State::array();
      for (const auto& input : inputs_) inputs.push_back(input->save());
      State state = {{"draws", draws_}, {"over", over_}, {"inputs", std::move(inputs)}};
      schema_.save(state);
      return state;
    }
    void load(uint64_t epoch, const State& state) override {
      const uint64_t draws = count_in(state, "draws");
      const State& inputs = member_of(state, "inputs");
      const State& over = member_of(state, "over");
      auto boolean = [](const State& value) { return value.is_boolean(); };
      if (!inputs.is_array() || inputs.size() != inputs_.size() || !over.is_array() ||
          over.size() != inputs_.size() || !std::all_of(over.begin(), over.end(), boolean)) {
        throw refuse_restore("the state is of another number of inputs");
      }
      enter(epoch);
      draws_ = draws;
      for (size_t i = 0; i < inputs_.size(); ++i) {
        over_[i] = over[i].get<bool>();
        inputs_[i]->load(epoch, inputs[i]);
      }
      schema_.load(state);
    }

   private:
    void enter(uint64_t epoch) {
      key_ = derive_key(stage_.seed_, epoch, KeyUse::kSample);
      draws_ = 0;
      schema_.begin();
      over_.assign(inputs_.size(), false);
    }

    // The drawn input; nullopt: all inputs have ended.
    std::optional<size_t> draw() const {
      double all = 0;
      for (size_t i = 0; i < inputs_.size(); ++i) all += over_[i] ? 0 : stage_.weights_[i];
      if (all == 0) return std::nullopt;
      double place = RandomStream({key_, 0, draws_, 0}).uniform() * all;
      std::optional<size_t> drawn;
      for (size_t i = 0; i < inputs_.size(); ++i) {
        if (over_[i] || stage_.weights_[i] == 0) continue;
        drawn = i;  // the last candidate is the fallback against rounding
        if (place < stage_.weights_[i]) break;
        place -= stage_.weights_[i];
      }
      return drawn;
    }

    const SampleFrom& stage_;
    std::vector<std::unique_ptr<StreamInput>> inputs_;
    PickedRows picked_;
    SchemaChecker schema_{stage_.spec()};
    std::vector<bool> over_;
    uint64_t key_ = 0, draws_ = 0;
  };

  std::vector<double> weights_;
  uint64_t seed_;
  bool stop_on_empty_;
};

}  // namespace

Node::Ref nodes::sample_from(std::vector<Node::Ref> inputs, std::vector<double> weights,
                             uint64_t seed, bool stop_on_empty) {
  auto refuse = [](const std::string& why) {
    return Error(Code::kInvalidArgument, "sample_from", why);
  };
  if (inputs.empty()) throw refuse("there are no inputs");
  if (weights.empty()) weights.assign(inputs.size(), 1.0);
  if (weights.size() != inputs.size()) {
    throw refuse(std::to_string(weights.size()) + " weights for " + std::to_string(inputs.size()) +
                 " inputs");
  }
  std::string title = "sample_from(";
  double all = 0;
  for (double weight : weights) {
    if (!std::isfinite(weight) || weight < 0) throw refuse("weights are 0 or more");
    all += weight;
    char digits[32];
    std::snprintf(digits, sizeof(digits), "%.17g, ", weight);
    title += digits;
  }
  if (all == 0 || !std::isfinite(all)) throw refuse("the weights' sum is 0, or too large");
  return make_node({
      .title = title + "seed=" + std::to_string(seed) + (stop_on_empty ? ", stop_on_empty)" : ")"),
      .inputs = std::move(inputs),
      .build =
          [=](std::vector<Built> built, Builder& builder) {
            return Built::of(std::make_shared<SampleFrom>(builder.as_streams(built), weights, seed,
                                                          stop_on_empty));
          },
  });
}

namespace {

void check_choice(const ElementSpec& spec) {
  const auto& leaves = spec.leaves();
  if (leaves.size() == 1 && leaves[0].dtype == DType::kInt64 && leaves[0].shape.empty()) return;
  throw Error(Code::kInvalidArgument, "choose_from",
              "choices are " + spec.to_string() + ", and not one int64 each");
}

class ChooseFrom : public StreamInputs {
 public:
  ChooseFrom(StreamedRef choices, std::vector<StreamedRef> inputs, bool stop_on_empty,
             std::string title)
      : StreamInputs(std::move(inputs), "choose_from"),
        choices_(std::move(choices)),
        stop_on_empty_(stop_on_empty),
        title_(std::move(title)) {
    if (SpecRef spec = choices_->spec()) check_choice(*spec);
  }

  std::optional<uint64_t> length() const override {
    if (choices_->length() == uint64_t{0}) return 0;
    return std::nullopt;
  }
  bool python() const override { return choices_->python() || StreamInputs::python(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const ChooseFrom& stage, Context& context)
        : stage_(stage), choices_(*stage.choices_, context) {
      for (const StreamedRef& input : stage.inputs()) {
        inputs_.push_back(std::make_unique<StreamInput>(*input, context));
      }
    }

    void begin(uint64_t epoch) override {
      over_ = false;
      schema_.begin();
      choices_.begin(epoch);
      for (const auto& input : inputs_) input->begin(epoch);
    }

    // Rows of several inputs' chunks go into one chunk, until one of the inputs must be read
    // further.
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // left by a call that threw
      while (picked_.size() < most && !over_) {
        if (choices_.left() == 0 && picked_.size() > 0) break;
        if (!choices_.more()) break;
        const std::optional<size_t> choice = chosen();
        if (!choice) {
          picked_.add(choices_);
          break;
        }
        StreamInput& input = *inputs_[*choice];
        if (input.left() == 0) {
          if (picked_.size() > 0) break;
          if (!input.more()) {
            const auto over = [](const auto& each) { return each->over(); };
            over_ = stage_.stop_on_empty_ || std::ranges::all_of(inputs_, over);
            picked_.drop(choices_);
            continue;
          }
        }
        const bool placed = input.placed();
        if (placed) {
          for (Failure& lost : choices_.chunk().take_notes(choices_.row())) {
            input.chunk().note(input.row(), std::move(lost));
          }
          choices_.use();
        }
        picked_.add(input);
      }
      return picked_.size() == 0 ? 0 : picked_.give(stage_.spec(), out, schema_, stage_.title_);
    }

    void release() override { picked_.forget(); }
    State save() const override {
      State inputs = State::array();
      for (const auto& input : inputs_) inputs.push_back(input->save());
      State state = {{"choices", choices_.save()}, {"inputs", std::move(inputs)}};
      if (over_) state["over"] = true;
      schema_.save(state);
      return state;
    }
    void load(uint64_t epoch, const State& state) override {
      const State& inputs = member_of(state, "inputs");
      if (!inputs.is_array() || inputs.size() != inputs_.size()) {
        throw refuse_restore("the state is of another number of inputs");
      }
      over_ = state.contains("over");
      choices_.load(epoch, member_of(state, "choices"));
      for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i]->load(epoch, inputs[i]);
      schema_.load(state);
    }

   private:
    // The next choice; nullopt: the choice failed.
    std::optional<size_t> chosen() {
      Chunk& in = choices_.chunk();
      if (choices_.failed()) return std::nullopt;
      check_choice(*in.spec());
      int64_t choice;
      std::memcpy(&choice, in.at(0, choices_.row()), sizeof(choice));
      if (choice >= 0 && static_cast<uint64_t>(choice) < inputs_.size()) {
        return static_cast<size_t>(choice);
      }
      in.fail(choices_.row(),
              {stage_.title_, choices_.ordinal() + choices_.row(),
               std::make_exception_ptr(Error(Code::kInvalidArgument, "choose_from",
                                             "there is no input " + std::to_string(choice) +
                                                 " of " + std::to_string(inputs_.size())))});
      return std::nullopt;
    }

    const ChooseFrom& stage_;
    StreamInput choices_;
    std::vector<std::unique_ptr<StreamInput>> inputs_;
    PickedRows picked_;
    SchemaChecker schema_{stage_.spec()};
    bool over_ = false;  // a chosen input ended (stop_on_empty), or all have
  };

  StreamedRef choices_;
  bool stop_on_empty_;
  std::string title_;
};

}  // namespace

Node::Ref nodes::choose_from(Node::Ref choices, std::vector<Node::Ref> inputs, bool stop_on_empty) {
  if (inputs.empty()) {
    throw Error(Code::kInvalidArgument, "choose_from", "there are no inputs");
  }
  inputs.insert(inputs.begin(), std::move(choices));
  return make_node({
      .title = "choose_from(" + std::to_string(inputs.size() - 1) +
               (stop_on_empty ? ", stop_on_empty)" : ")"),
      .inputs = std::move(inputs),
      .build =
          [stop_on_empty](std::vector<Built> built, Builder& builder) {
            std::vector<StreamedRef> streams = builder.as_streams(built);
            StreamedRef first = std::move(streams.front());
            streams.erase(streams.begin());
            return Built::of(std::make_shared<ChooseFrom>(std::move(first), std::move(streams),
                                                          stop_on_empty, builder.title()));
          },
  });
}

}  // namespace penstock
