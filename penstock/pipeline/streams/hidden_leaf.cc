#include "penstock/pipeline/streams/hidden_leaf.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/stage_clock.h"

namespace penstock {
namespace {

SpecRef joined(const ElementSpec& element) {
  std::vector<Leaf> leaves(element.leaves().begin(), element.leaves().end());
  leaves.push_back(
      {std::string(kHiddenLeaf), LeafKind::kDense, DType::kUint8, {std::tuple_size_v<Summary>}});
  return std::make_shared<ElementSpec>(std::move(leaves), element.nest());
}

class WithHidden : public Indexed {
 public:
  WithHidden(IndexedRef input, OpRef op, Summarize summarize, uint32_t operation, std::string title)
      : input_(std::move(input)),
        op_(std::move(op)),
        summarize_(std::move(summarize)),
        operation_(operation),
        title_(std::move(title)) {
    if (const SpecRef in = input_->spec()) {
      (void)op_->result(*in);
      spec_ = joined(*in);
    }
  }

  uint64_t length(uint64_t base) const override { return input_->length(base); }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return op_->user_code() || input_->costly(); }
  bool python() const override { return op_->python() || input_->python(); }
  Decision decision() const override { return input_->decision(); }
  std::string origin(const Context& context, const At& at, uint64_t position) const override {
    return input_->origin(context, at, position);
  }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const WithHidden& stage, Context& context)
        : stage_(stage),
          context_(context),
          input_(stage.input_->open(context)),
          in_(context.scratch),
          made_(context.scratch) {}

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      const auto end = static_cast<uint32_t>(row + positions.size());
      in_.reset(stage_.input_->spec(), end);
      input_->fetch(at, positions, in_, row);
      for (auto& [lost, failure] : in_.failures()) out.fail(lost, std::move(failure));
      out.move_notes_from(in_);
      if (in_.spec() == nullptr) return;  // all elements failed
      if (run_ == nullptr || (bound_ != in_.spec() && *bound_ != *in_.spec())) {
        result_ = stage_.op_->result(*in_.spec());
        run_ = stage_.op_->bind(in_.spec(), context_);
        bound_ = in_.spec();
        joined_ = stage_.spec_ != nullptr ? stage_.spec_ : joined(*bound_);
      }
      made_.reset(result_, end);
      {
        StageClock::Part part(context_.clock);
        run_->run(Keys(context_, at.epoch, positions, stage_.operation_), in_, made_, row);
      }
      out.move_notes_from(made_);
      for (auto& [lost, failure] : made_.failures()) {
        if (failure.stage.empty()) failure.stage = stage_.title_;
        failure.position = positions[lost - row];
        out.fail(lost, std::move(failure));
      }
      const uint64_t here =
          end - row == Chunk::kRows ? ~uint64_t{0} : ((uint64_t{1} << (end - row)) - 1) << row;
      if ((out.alive() & here) == 0) return;
      if (!out.settle(joined_)) {
        const auto error = std::make_exception_ptr(schema_error(*out.spec(), *bound_));
        for (uint32_t i = row; i < end; ++i) {
          if ((out.alive() >> i & 1) != 0) out.fail(i, {stage_.title_, positions[i - row], error});
        }
        return;
      }
      const size_t leaves = bound_->leaves().size();
      for (uint32_t at_row = row; at_row < end; ++at_row) {
        if ((out.alive() >> at_row & 1) == 0) continue;
        try {
          const Summary summary = stage_.summarize_(made_, at_row);
          std::byte* const place = context_.scratch.take(summary.size());
          std::ranges::copy(summary, place);
          out.view(leaves, at_row, place);
        } catch (...) {
          out.fail(at_row, {stage_.title_, positions[at_row - row], std::current_exception()});
          continue;
        }
        for (size_t leaf = 0; leaf < leaves; ++leaf) {
          out.view(leaf, at_row, in_.at(leaf, at_row), in_.shape(leaf, at_row));
        }
      }
      out.keep_owners_of(in_);
      out.keep_owners_of(made_);
    }

   private:
    const WithHidden& stage_;
    Context& context_;
    std::unique_ptr<IndexedReader> input_;
    Chunk in_, made_;
    SpecRef bound_, result_, joined_;
    std::unique_ptr<OpRun> run_;
  };

  IndexedRef input_;
  OpRef op_;
  Summarize summarize_;
  uint32_t operation_;
  std::string title_;
  SpecRef spec_;
};

}  // namespace

IndexedRef with_hidden_leaf(IndexedRef input, OpRef op, Summarize summarize, uint32_t operation,
                            std::string title) {
  return std::make_shared<WithHidden>(std::move(input), std::move(op), std::move(summarize),
                                      operation, std::move(title));
}

SpecRef without_hidden_leaf(const SpecRef& spec) {
  if (spec == nullptr) return nullptr;
  const auto leaves = spec->leaves().first(spec->leaves().size() - 1);
  return std::make_shared<ElementSpec>(std::vector<Leaf>(leaves.begin(), leaves.end()),
                                       spec->nest());
}

void HiddenLeaf::split(Chunk& whole, Chunk& elements) {
  const SpecRef& spec = whole.spec();
  if (spec != nullptr && (whole_ == nullptr || (whole_ != spec && *whole_ != *spec))) {
    whole_ = spec;
    elements_ = without_hidden_leaf(spec);
  }
  const uint32_t rows = whole.rows();
  elements.reset(spec == nullptr ? nullptr : elements_, rows);
  for (auto& [row, failure] : whole.failures()) elements.fail(row, std::move(failure));
  elements.keep_owners_of(whole);
  if (spec == nullptr) return;
  for (uint32_t row = 0; row < rows; ++row) {
    if ((whole.alive() >> row & 1) == 0) continue;
    for (size_t leaf = 0; leaf < elements_->leaves().size(); ++leaf) {
      elements.view(leaf, row, whole.at(leaf, row), whole.shape(leaf, row));
    }
  }
}

Summary HiddenLeaf::summary(const Chunk& whole, uint32_t row) {
  Summary summary;
  std::memcpy(summary.data(), whole.at(whole.spec()->leaves().size() - 1, row), summary.size());
  return summary;
}

}  // namespace penstock
