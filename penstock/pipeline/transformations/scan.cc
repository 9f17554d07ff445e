#include <algorithm>
#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "penstock/pipeline/element/example_rows.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/held_back.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

class FunctionScanner : public Scanner {
 public:
  explicit FunctionScanner(Scanning function)
      : function_(given(std::move(function), "scan", "function")) {}

  std::unique_ptr<Run> bind(const std::string& stage, Context&) const override {
    return std::make_unique<Step>(*this, stage);
  }

 private:
  class Step : public Run {
   public:
    Step(const FunctionScanner& scanner, const std::string& stage)
        : scanner_(scanner), stage_(stage), carries_(stage) {}

    void step(const Keys&, const Chunk& carry, const Chunk& in, uint32_t from, Chunk& next,
              Chunk& out, uint32_t row) override {
      if (!results_ || of_ != in.spec()) {
        of_ = in.spec();
        results_.emplace(stage_, of_);
      }
      std::exception_ptr error;
      try {
        auto [carried, element] = scanner_.function_(viewed(carry, 0), viewed(in, from));
        error = carries_.give(std::make_shared<Example>(std::move(carried)), next, 0);
        if (error == nullptr) error = results_->give(owned(element), out, row);
      } catch (...) {
        error = std::current_exception();
      }
      if (error != nullptr) out.fail(row, {{}, 0, std::move(error)});
    }

   private:
    // Copies, since the result may be views of the old carry, which is released.
    static std::shared_ptr<Example> owned(const Example& element) {
      auto copy = std::make_shared<Example>();
      for (const auto& [name, tensor] : element) {
        copy->set(name, tensor.defined() ? tensor.copy() : tensor);
      }
      return copy;
    }

    const FunctionScanner& scanner_;
    const std::string& stage_;
    ExampleRows carries_;
    SpecRef of_;
    std::optional<ExampleRows> results_;
  };

  Scanning function_;
};

HeldRow held(const Example& carry, const std::string& stage) {
  Scratch scratch;
  Chunk chunk(scratch);
  chunk.reset(nullptr, 1);
  if (auto error = ExampleRows(stage).give(std::make_shared<Example>(carry), chunk, 0)) {
    std::rethrow_exception(error);
  }
  HeldRow row;
  row.take(chunk, 0);
  return row;
}

class Scan : public StreamMapped {
 public:
  Scan(StreamedRef input, HeldRow initial, std::shared_ptr<const Scanner> scanner,
       uint32_t operation, std::string title)
      : StreamMapped(std::move(input)),
        initial_(std::move(initial)),
        scanner_(std::move(scanner)),
        operation_(operation),
        title_(std::move(title)) {}

  SpecRef spec() const override { return nullptr; }
  std::optional<uint64_t> length() const override { return input()->length(); }
  bool python() const override { return scanner_->python() || input()->python(); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const Scan& stage, Context& context)
        : stage_(stage),
          context_(context),
          run_(stage.scanner_->bind(stage.title_, context)),
          input_(*stage.input(), context),
          carried_(scratch_),
          next_(scratch_) {}

    void begin(uint64_t epoch) override {
      epoch_ = epoch;
      carry_ = stage_.initial_;
      schema_.begin();
      input_.begin(epoch);
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      if (!input_.more()) return 0;
      StageClock::Part part(context_.clock);
      const uint32_t count = std::min(most, input_.left());
      out.reset(nullptr, count);
      if (schema_.inferred() != nullptr) (void)out.settle(schema_.inferred());
      for (uint32_t i = 0; i < count; ++i) {
        context_.check_open();
        if (input_.failed()) {
          pass_row(input_.chunk(), input_.row(), out, i);
        } else {
          scan(out, i);
        }
        input_.use();
      }
      if (out.alive() != 0) schema_.check(out.spec());
      return count;
    }

    State save() const override {
      State state = {{"carry", carry_.save()}, {"input", input_.save()}};
      schema_.save(state);
      return state;
    }
    void load(uint64_t epoch, const State& state) override {
      epoch_ = epoch;
      carry_.load(member_of(state, "carry"));
      input_.load(epoch, member_of(state, "input"));
      schema_.load(state);
    }

   private:
    void scan(Chunk& out, uint32_t row) {
      scratch_.empty();
      carried_.reset(carry_.spec(), 1);
      carry_.give(carried_, 0);
      next_.reset(nullptr, 1);
      const std::array<uint64_t, 1> position = {input_.ordinal() + input_.row()};
      run_->step(Keys(context_, epoch_, position, stage_.operation_), carried_, input_.chunk(),
                 input_.row(), next_, out, row);
      for (Failure& lost : input_.chunk().take_notes(input_.row())) out.note(row, std::move(lost));
      if ((out.alive() >> row & 1) != 0) return carry_.take(next_, 0);
      for (auto& [lost, failure] : out.failures()) {
        if (lost != row || !failure.stage.empty()) continue;
        failure.stage = stage_.title_;
        failure.position = position[0];
      }
    }

    const Scan& stage_;
    Context& context_;
    std::unique_ptr<Scanner::Run> run_;
    StreamInput input_;
    Scratch scratch_;  // of the two chunks; emptied with each step
    Chunk carried_, next_;
    SchemaChecker schema_{nullptr};
    HeldRow carry_;
    uint64_t epoch_ = 0;
  };

  HeldRow initial_;
  std::shared_ptr<const Scanner> scanner_;
  uint32_t operation_;
  std::string title_;
};

}  // namespace

Node::Ref nodes::scan(Node::Ref input, std::string name, const Example& initial,
                      Scanning function) {
  HeldRow carry = held(initial, "scan(" + name + ")");
  return scan(std::move(input), std::move(name), std::move(carry),
              std::make_shared<FunctionScanner>(std::move(function)));
}

Node::Ref nodes::scan(Node::Ref input, std::string name, HeldRow initial,
                      std::shared_ptr<const Scanner> scanner) {
  return make_node({
      .title = "scan(" + utf8_name(std::move(name), "scan") + ")",
      .inputs = {std::move(input)},
      .build =
          [initial = std::move(initial), scanner](std::vector<Built> inputs, Builder& builder) {
            StreamedRef stream = builder.as_stream(inputs[0]);
            return Built::of(std::make_shared<Scan>(std::move(stream), initial, scanner,
                                                    builder.operation(), builder.title()));
          },
  });
}

}  // namespace penstock
