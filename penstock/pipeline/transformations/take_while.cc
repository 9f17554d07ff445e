#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/predicate_stage.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

class TakeWhile : public PredicateStage {
 public:
  using PredicateStage::PredicateStage;

  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const TakeWhile& stage, Context& context) : input_(stage.input(context)) {}

    void begin(uint64_t epoch) override {
      over_ = false;
      input_.begin(epoch);
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // left by a call that threw
      if (over_ || !input_.more()) return 0;
      StreamInput& input = input_.input();
      while (input.left() > 0 && picked_.size() < most && !over_) {
        over_ = !input_.holds();
        over_ ? picked_.drop(input) : picked_.add(input);
      }
      return picked_.size() == 0 ? 0 : picked_.give(input.spec(), out);
    }
    void release() override { picked_.forget(); }
    State save() const override { return {{"over", over_}, {"input", input_.save()}}; }
    void load(uint64_t epoch, const State& state) override {
      const State& over = member_of(state, "over");
      if (!over.is_boolean()) {
        throw Error(Code::kInvalidArgument, "restore", "'over' is neither true nor false");
      }
      over_ = over.get<bool>();
      input_.load(epoch, member_of(state, "input"));
    }

   private:
    PredicateInput input_;
    PickedRows picked_;
    bool over_ = false;
  };
};

}  // namespace

Node::Ref nodes::take_while(Node::Ref input, OpRef predicate) {
  predicate = given(std::move(predicate), "take_while", "operation");
  return make_node({
      .title = "take_while(" + predicate->title() + ")",
      .inputs = {std::move(input)},
      .build =
          [predicate](std::vector<Built> inputs, Builder& builder) {
            return Built::of(
                std::make_shared<TakeWhile>(inputs[0], builder, predicate, builder.title()));
          },
  });
}

}  // namespace penstock
