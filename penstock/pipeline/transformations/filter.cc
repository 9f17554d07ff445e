#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/transformations/predicate_stage.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

class Filter : public PredicateStage {
 public:
  using PredicateStage::PredicateStage;

  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const Filter& stage, Context& context) : input_(stage.input(context)) {}

    void begin(uint64_t epoch) override { input_.begin(epoch); }
    uint32_t next(uint32_t most, Chunk& out) override {
      picked_.forget();  // left by a call that threw
      StreamInput& input = input_.input();
      while (input_.more()) {
        while (input.left() > 0 && picked_.size() < most) {
          input_.holds() ? picked_.add(input) : picked_.drop(input);
        }
        if (picked_.size() > 0) return picked_.give(input.spec(), out);
      }
      return 0;
    }
    void release() override { picked_.forget(); }
    State save() const override { return input_.save(); }
    void load(uint64_t epoch, const State& state) override { input_.load(epoch, state); }

   private:
    PredicateInput input_;
    PickedRows picked_;
  };
};

}  // namespace

Node::Ref nodes::filter(Node::Ref input, OpRef predicate) {
  predicate = given(std::move(predicate), "filter", "operation");
  return make_node({
      .title = "filter(" + predicate->title() + ")",
      .inputs = {std::move(input)},
      .build =
          [predicate](std::vector<Built> inputs, Builder& builder) {
            return Built::of(
                std::make_shared<Filter>(inputs[0], builder, predicate, builder.title()));
          },
  });
}

}  // namespace penstock
