#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/inputs.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
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
        throw Error(Code::kInvalidArgument, "restore", "the state is of another number of inputs");
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
