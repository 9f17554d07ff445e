#include "penstock/pipeline/transformations/take_while.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/indexed_stream.h"
#include "penstock/pipeline/judged_input.h"

namespace penstock {
namespace {

class TakeWhile : public Streamed {
 public:
  TakeWhile(StreamedRef input, OpRef predicate, uint32_t operation, std::string title)
      : input_(std::move(input)),
        predicate_(std::move(predicate)),
        operation_(operation),
        title_(std::move(title)) {
    if (SpecRef spec = input_->spec()) (void)predicate_->result(*spec);
  }

  SpecRef spec() const override { return input_->spec(); }
  std::optional<uint64_t> length() const override {
    if (input_->length() == uint64_t{0}) return 0;
    return std::nullopt;
  }
  bool python() const override { return predicate_->python() || input_->python(); }
  std::unique_ptr<StreamReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public StreamReader {
   public:
    Reader(const TakeWhile& stage, Context& context)
        : input_(*stage.input_, *stage.predicate_, stage.operation_, stage.title_, context) {}

    void begin(uint64_t epoch) override {
      over_ = false;
      input_.begin(epoch);
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      if (over_ || !input_.more()) return 0;
      StreamInput& input = input_.input();
      while (input.left() > 0 && picked_.size() < most && !over_) {
        over_ = !input_.holds();
        if (!over_) picked_.add(input);
      }
      return picked_.size() == 0 ? 0 : picked_.give(input.spec(), out);
    }
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
    JudgedInput input_;
    PickedRows picked_;
    bool over_ = false;
  };

  StreamedRef input_;
  OpRef predicate_;
  uint32_t operation_;
  std::string title_;
};

}  // namespace

Built TakeWhileNode::build(std::vector<Built> inputs, Builder& builder) const {
  StreamedRef input = builder.as_stream(inputs[0]);
  return Built::of(
      std::make_shared<TakeWhile>(std::move(input), predicate_, builder.operation(), title()));
}

}  // namespace penstock
