#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "penstock/base/bijection.h"
#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/plan/dataset_options.h"
#include "penstock/pipeline/scheduler/order.h"
#include "penstock/pipeline/stages/inputs.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

bool undecided(const Failure& failure) { return failure.decision == Decision::kUndecided; }

class OnErrorStage : public Indexed {
 public:
  OnErrorStage(IndexedRef input, OnError policy, uint64_t attempts)
      : input_(std::move(input)), policy_(policy), attempts_(attempts), others_(input_) {
    IndexedRef samples = input_;
    while (auto mapped = std::dynamic_pointer_cast<const IndexMapped>(samples)) {
      samples = mapped->input();
    }
    if (samples->index({}, 0)) others_ = samples;
  }

  uint64_t length(uint64_t base) const override { return input_->length(base); }
  SpecRef spec() const override { return input_->spec(); }
  bool costly() const override { return input_->costly(); }
  bool python() const override { return input_->python(); }
  Decision decision() const override {
    // A failure found downstream cannot be replaced there.
    if (policy_ == OnError::kReplace) return Decision::kUndecided;
    return policy_ == OnError::kSkip ? Decision::kSkip : Decision::kRaise;
  }
  std::string origin(const Context& context, const At& at, uint64_t position) const override {
    return input_->origin(context, at, position);
  }
  std::vector<uint64_t> blocks() const override { return input_->blocks(); }
  std::optional<uint64_t> index(const At& at, uint64_t position) const override {
    return input_->index(at, position);
  }
  std::unique_ptr<IndexedReader> reader(Context& context) const override;

  const Indexed& input() const { return *input_; }
  OnError policy() const { return policy_; }
  // The input of replacements, and the limit of attempts.
  const Indexed& others() const { return *others_; }
  uint64_t attempts() const { return attempts_; }

 private:
  IndexedRef input_;
  OnError policy_;
  uint64_t attempts_;
  IndexedRef others_;
};

// The reader for raise and skip, which sets the decision of each failure.
class DecidingReader : public IndexedReader {
 public:
  DecidingReader(const OnErrorStage& stage, Context& context)
      : decision_(stage.decision()), input_(stage.input().open(context)) {}

  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
    const size_t before = out.failures().size();  // failures of earlier rows
    input_->fetch(at, positions, out, row);
    for (size_t i = before; i < out.failures().size(); ++i) {
      Failure& failure = out.failures()[i].second;
      if (undecided(failure)) failure.decision = decision_;
    }
  }

 private:
  const Decision decision_;
  std::unique_ptr<IndexedReader> input_;
};

class ReplacingReader : public IndexedReader {
 public:
  ReplacingReader(const OnErrorStage& stage, Context& context)
      : stage_(stage),
        context_(context),
        input_(stage.input().open(context)),
        others_(stage.others().open(context)),
        rows_(context.scratch),
        another_(context.scratch) {}

  void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out, uint32_t row) override {
    SpecRef spec = stage_.spec();
    Chunk& made = rows_.make(*input_, spec, at, positions, out, row);
    lost_.clear();
    std::swap(lost_, made.failures());
    out.move_notes_from(made);
    if (rows_.spec() != nullptr) {
      if (out.settle(rows_.spec())) {
        rows_.forward(out);
      } else {
        fail_all(positions, out, row);
      }
    }
    for (auto& [lost, failure] : lost_) {
      if (!undecided(failure) || !replace(at, positions[lost - row], out, lost, failure)) {
        out.fail(lost, std::move(failure));
      }
    }
  }

 private:
  void fail_all(std::span<const uint64_t> positions, Chunk& out, uint32_t row) const {
    auto error = std::make_exception_ptr(Error(Code::kInvalidArgument, "on_error",
                                               "elements must be alike: one is " +
                                                   rows_.spec()->to_string() + ", another " +
                                                   out.spec()->to_string()));
    for (size_t i = 0; i < positions.size(); ++i) {
      out.fail(static_cast<uint32_t>(row + i), {"on_error(replace)", positions[i], error});
    }
  }

  // Puts another element into row `row` of `out`. False: none could be made, or an attempt must
  // raise.
  bool replace(const At& at, uint64_t position, Chunk& out, uint32_t row, Failure& failure) {
    if (!attempt(at, position, out, row, failure)) {
      failure.decision = Decision::kRaise;
      return false;
    }
    failure.decision = Decision::kReplace;
    out.note(row, std::move(failure));
    return true;
  }

  bool attempt(const At& at, uint64_t position, Chunk& out, uint32_t row, Failure& failure) {
    const uint64_t length = stage_.length(at.base);
    const Order order({.length = length, .seed = context_.seed});
    const uint64_t own = stage_.index(at, position).value_or(position);
    uint64_t left = stage_.attempts();
    for (uint32_t n = 0; left > 0 && n < length; ++n) {
      const uint64_t other = order.replacement(at.epoch, position, n);
      if (other == own) continue;
      --left;
      Chunk& made = another_.make(*others_, stage_.spec(), at, {&other, 1}, out, row);
      for (auto& [lost, raised] : made.failures()) {
        if (raised.decision != Decision::kRaise) continue;
        failure = std::move(raised);
        return false;
      }
      if (!made.failures().empty() || !out.settle(another_.spec())) continue;
      another_.forward(out);
      return true;
    }
    return false;
  }

  const OnErrorStage& stage_;
  Context& context_;
  std::unique_ptr<IndexedReader> input_, others_;
  InputRows rows_, another_;
  std::vector<std::pair<uint32_t, Failure>> lost_;
};

std::unique_ptr<IndexedReader> OnErrorStage::reader(Context& context) const {
  if (policy_ == OnError::kReplace) return std::make_unique<ReplacingReader>(*this, context);
  return std::make_unique<DecidingReader>(*this, context);
}

std::string title_of(OnError policy) {
  switch (policy) {
    case OnError::kRaise:
      break;
    case OnError::kSkip:
      return "on_error(skip)";
    case OnError::kReplace:
      return "on_error(replace)";
  }
  return "on_error(raise)";
}

}  // namespace

Node::Ref nodes::on_error(Node::Ref input, OnError policy, uint64_t attempts) {
  auto policy_before = [skip = policy == OnError::kSkip](const FailurePolicy& here) {
    return FailurePolicy{skip, here.feed_skips, true, false};
  };
  return make_node({
      .title = title_of(policy),
      .inputs = {std::move(input)},
      .build = [=](std::vector<Built> inputs, Builder& builder) -> Built {
        builder.add_policy();
        if (inputs[0].stream != nullptr) {
          if (policy == OnError::kReplace) {
            throw Error(
                Code::kInvalidArgument, "on_error",
                "replace needs elements that can be asked for by their positions, and the input's "
                "only come one after the other: replace before that, or skip");
          }
          // Workers make the tail's elements, so each worker decides on the failures there.
          Built built = inputs[0].with([&](IndexedRef below) {
            return std::make_shared<OnErrorStage>(std::move(below), policy, attempts);
          });
          built.stream = policy_stream(std::move(built.stream), policy_before({}));
          built.may_skip |= policy == OnError::kSkip && built.may_fail;
          return built;
        }
        const uint64_t length = inputs[0].indexed->length(0);
        if (policy == OnError::kReplace && length > Bijection::kMaxLength) {
          throw Error(
              Code::kInvalidArgument, "on_error",
              "replace needs an input with an end, of at most 2^62 elements: repeat after it");
        }
        return {std::make_shared<OnErrorStage>(inputs[0].indexed, policy, attempts)};
      },
      .policy_before = policy_before,
      .inputs_per_element = 1,
  });
}

}  // namespace penstock
