#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

// The input's epoch for round 0 of an epoch. Endless repeats also have several epochs if a later
// stage takes only some elements, so these are spaced far apart.
uint64_t first_of(uint64_t epoch, uint64_t count) {
  constexpr uint64_t kFarApart = uint64_t{1} << 32;
  return epoch * (count == kEndless ? kFarApart : count);
}

class Repeat : public IndexMapped {
 public:
  Repeat(IndexedRef input, uint64_t count) : IndexMapped(std::move(input)), count_(count) {}

  uint64_t length(uint64_t base) const override {
    uint64_t once = input()->length(base), all;
    if (once == 0) return 0;
    return __builtin_mul_overflow(once, count_, &all) ? kEndless : all;
  }

  uint32_t map(At& at, std::span<uint64_t> positions) const override {
    const uint64_t once = input()->length(at.base);
    const uint64_t round = positions[0] / once;
    at.epoch = first_of(at.epoch, count_) + round;
    const uint64_t begin = round * once;
    for (uint32_t i = 0; i < positions.size(); ++i) {
      uint64_t inside = positions[i] - begin;
      if (positions[i] < begin || inside >= once) return i;
      positions[i] = inside;
    }
    return static_cast<uint32_t>(positions.size());
  }

 private:
  uint64_t count_;
};

class RepeatStream : public StreamMapped {
 public:
  RepeatStream(StreamedRef input, uint64_t count) : StreamMapped(std::move(input)), count_(count) {}

  std::optional<uint64_t> length() const override {
    auto once = input()->length();
    uint64_t all;
    if (!once || *once == 0) return once;
    return __builtin_mul_overflow(*once, count_, &all) ? kEndless : all;
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const RepeatStream& stage, Context& context)
        : context_(context),
          count_(stage.count_),
          input_(stage.input()->open(context)),
          checks_schema_(stage.spec() == nullptr),
          schema_(stage.spec()) {}

    void begin(uint64_t epoch) override {
      first_ = first_of(epoch, count_);
      given_ = 0;
      schema_.begin();
      enter(0);
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      while (round_ < count_) {
        if (const uint32_t count = input_->next(most, out); count != 0) {
          empty_ = empty_ && out.alive() == 0;
          // All rounds must have the same schema.
          if (checks_schema_)
            schema_.hold(
                out, [&](uint32_t row) { return given_ + row; }, "repeat");
          given_ += count;
          return count;
        }
        // Ends an endless repeat of an empty input, which would loop for ever.
        if (empty_ && count_ == kEndless) return 0;
        if (round_ + 1 == count_) return 0;
        context_.check_open();
        enter(round_ + 1);
      }
      return 0;
    }
    void release() override { input_->release(); }
    State save() const override {
      State state = {{"round", round_}, {"empty", empty_}, {"input", input_->save()}};
      if (checks_schema_) state["given"] = given_;
      schema_.save(state);
      return state;
    }
    void load(uint64_t epoch, const State& state) override {
      first_ = first_of(epoch, count_);
      round_ = count_in(state, "round");
      if (round_ >= count_) {
        throw Error(Code::kInvalidArgument, "restore", "the state's round is none of repeat's");
      }
      const State& empty = member_of(state, "empty");
      if (!empty.is_boolean()) throw refuse_restore("whether repeat's round is empty is not said");
      empty_ = empty.get<bool>();
      given_ = state.contains("given") ? count_in(state, "given") : 0;
      input_->load(first_ + round_, member_of(state, "input"));
      schema_.load(state);
    }

   private:
    void enter(uint64_t round) {
      round_ = round;
      empty_ = true;
      input_->begin(first_ + round);
    }

    const Context& context_;
    uint64_t count_;
    std::unique_ptr<ElementReader> input_;
    const bool checks_schema_;
    SchemaChecker schema_;
    uint64_t given_ = 0;
    uint64_t first_ = 0;  // the input's epoch in round 0
    uint64_t round_ = 0;
    bool empty_ = true;  // no element in this round so far
  };

  uint64_t count_;
};

}  // namespace

Node::Ref nodes::repeat(Node::Ref input, uint64_t count) {
  if (count == 0) throw Error(Code::kInvalidArgument, "repeat", "count is 0; give 1 or more");
  return make_node({
      .title = count == kEndless ? "repeat()" : "repeat(" + std::to_string(count) + ")",
      .inputs = {std::move(input)},
      .build = [count](std::vector<Built> inputs, Builder& builder) -> Built {
        if (count == 1) return inputs[0];
        if (inputs[0].stream != nullptr) {
          return Built::of(std::make_shared<RepeatStream>(builder.as_stream(inputs[0]), count));
        }
        return {std::make_shared<Repeat>(inputs[0].indexed, count)};
      },
      .feed_part = Node::FeedPart{.rounds = count},
  });
}

}  // namespace penstock
