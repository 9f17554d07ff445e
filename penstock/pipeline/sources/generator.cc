#include <array>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>

#include "penstock/base/json.h"
#include "penstock/pipeline/element/example_rows.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/sources/sources.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {
namespace {

using Begin = std::function<Pull(uint64_t epoch)>;

class Generator : public Streamed {
 public:
  Generator(Begin begin, std::string title) : begin_(std::move(begin)), title_(std::move(title)) {}

  SpecRef spec() const override { return nullptr; }
  std::optional<uint64_t> length() const override { return std::nullopt; }
  bool python() const override { return false; }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const Generator& stage, Context& context)
        : stage_(stage), context_(context), rows_(stage.title_) {}

    void begin(uint64_t epoch) override {
      taken_ = 0;
      inferred_ = nullptr;
      error_ = nullptr;
      pull_ = stage_.begin_(epoch);
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      if (error_ != nullptr) std::rethrow_exception(error_);
      StageClock::Part part(context_.clock);
      uint32_t count = 0;
      while (count < most && error_ == nullptr) {
        try {
          std::optional<Example> pulled = pull();
          if (!pulled) break;
          pulled_[count++] = std::make_shared<Example>(std::move(*pulled));
        } catch (...) {
          error_ = std::current_exception();  // raised after the elements before it
        }
      }
      if (count == 0) {
        if (error_ != nullptr) std::rethrow_exception(error_);
        return 0;
      }
      out.reset(nullptr, count);
      if (inferred_ != nullptr) (void)out.settle(inferred_);
      for (uint32_t i = 0; i < count; ++i) {
        if (auto error = rows_.give(std::move(pulled_[i]), out, i)) {
          out.fail(i, {stage_.title_, taken_ + i, std::move(error)});
        }
      }
      inferred_ = out.spec();
      taken_ += count;
      return count;
    }

    State save() const override { return {{"taken", taken_}}; }
    void load(uint64_t epoch, const State& state) override {
      const uint64_t taken = count_in(state, "taken");
      begin(epoch);
      for (; taken_ < taken; ++taken_) {
        std::optional<Example> pulled = pull();
        if (!pulled) throw refuse_restore("the state is beyond the generator's end");
        if (inferred_ == nullptr) learn(std::move(*pulled));
      }
    }

   private:
    // Infers the schema from an element that a restore skips.
    void learn(Example element) {
      Chunk one(context_.scratch);
      one.reset(nullptr, 1);
      if (rows_.give(std::make_shared<Example>(std::move(element)), one, 0) == nullptr) {
        inferred_ = one.spec();
      }
    }

    // Does not call the function again after its end.
    std::optional<Example> pull() {
      if (!pull_) return std::nullopt;
      context_.check_open();
      std::optional<Example> pulled = pull_();
      if (!pulled) pull_ = nullptr;
      return pulled;
    }

    const Generator& stage_;
    Context& context_;
    ExampleRows rows_;
    SpecRef inferred_;  // the schema inferred so far; elements that differ fail
    Pull pull_;
    std::array<std::shared_ptr<Example>, Chunk::kRows> pulled_;
    std::exception_ptr error_;
    uint64_t taken_ = 0;
  };

  Begin begin_;
  std::string title_;
};

}  // namespace

Node::Ref nodes::generator(std::string name, Begin begin) {
  name = utf8_name(std::move(name), "generator");
  return make_node({
      .title = "generator(" + name + ")",
      .build =
          [begin = given(std::move(begin), "generator", "function")](std::vector<Built>,
                                                                     Builder& builder) {
            return Built::of(std::make_shared<Generator>(begin, builder.title()));
          },
  });
}

}  // namespace penstock
