#include "penstock/pipeline/hidden_leaves.h"

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "penstock/base/error.h"

namespace penstock {
namespace {

constexpr char kHidden = '\x01';  // the first letter of their names

bool is_hidden(const Leaf& leaf) { return !leaf.name.empty() && leaf.name[0] == kHidden; }

SpecRef joined(const ElementSpec& element, const ElementSpec& made) {
  std::vector<Leaf> leaves(element.leaves().begin(), element.leaves().end());
  for (Leaf leaf : made.leaves()) {
    leaf.name.insert(0, 1, kHidden);
    leaves.push_back(std::move(leaf));
  }
  return std::make_shared<ElementSpec>(std::move(leaves), element.nest());
}

SpecRef part_of(const ElementSpec& whole, bool hidden) {
  std::vector<Leaf> leaves;
  for (const Leaf& leaf : whole.leaves()) {
    if (is_hidden(leaf) != hidden) continue;
    leaves.push_back(leaf);
    if (hidden) leaves.back().name.erase(0, 1);
  }
  return std::make_shared<ElementSpec>(std::move(leaves), hidden ? "" : whole.nest());
}

class WithHidden : public Indexed {
 public:
  WithHidden(IndexedRef input, OpRef op, uint32_t operation, std::string title)
      : input_(std::move(input)),
        op_(std::move(op)),
        operation_(operation),
        title_(std::move(title)) {
    if (const SpecRef in = input_->spec()) {
      if (const SpecRef made = op_->result(*in)) spec_ = joined(*in, *made);
    }
  }

  uint64_t length(uint64_t base) const override { return input_->length(base); }
  SpecRef spec() const override { return spec_; }
  bool costly() const override { return op_->user_code() || input_->costly(); }
  bool python() const override { return op_->python() || input_->python(); }
  std::string origin(const At& at, uint64_t position) const override {
    return input_->origin(at, position);
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
      if (in_.spec() == nullptr) return;  // not one of them could be made
      if (run_ == nullptr || (bound_ != in_.spec() && *bound_ != *in_.spec())) {
        result_ = stage_.op_->result(*in_.spec());
        run_ = stage_.op_->bind(in_.spec(), context_);
        bound_ = in_.spec();
        joined_ = nullptr;
      }
      made_.reset(result_, end);
      run_->run(Keys(context_, at.epoch, positions, stage_.operation_), in_, made_, row);
      for (auto& [lost, failure] : made_.failures()) {
        if (failure.stage.empty()) failure.stage = stage_.title_;
        failure.position = positions[lost - row];
        out.fail(lost, std::move(failure));
      }
      if (made_.spec() == nullptr) return;
      if (joined_ == nullptr || (told_ != made_.spec() && *told_ != *made_.spec())) {
        told_ = made_.spec();
        joined_ = joined(*bound_, *told_);
      }
      if (!out.settle(joined_)) {
        throw Error(Code::kInternal, stage_.title_, "elements of two specs in one chunk");
      }
      const size_t leaves = in_.spec()->leaves().size();
      for (uint32_t at_row = row; at_row < end; ++at_row) {
        if ((out.alive() >> at_row & 1) == 0) continue;
        for (size_t leaf = 0; leaf < leaves; ++leaf) {
          out.view(leaf, at_row, in_.at(leaf, at_row), in_.shape(leaf, at_row));
        }
        for (size_t leaf = 0; leaf < told_->leaves().size(); ++leaf) {
          out.view(leaves + leaf, at_row, made_.at(leaf, at_row), made_.shape(leaf, at_row));
        }
      }
      out.keep_all(in_);
      out.keep_all(made_);
    }

   private:
    const WithHidden& stage_;
    Context& context_;
    std::unique_ptr<IndexedReader> input_;
    Chunk in_, made_;
    SpecRef bound_, result_, told_, joined_;
    std::unique_ptr<OpRun> run_;
  };

  IndexedRef input_;
  OpRef op_;
  uint32_t operation_;
  std::string title_;
  SpecRef spec_;
};

}  // namespace

IndexedRef with_hidden_leaves(IndexedRef input, OpRef op, uint32_t operation, std::string title) {
  return std::make_shared<WithHidden>(std::move(input), std::move(op), operation, std::move(title));
}

SpecRef visible_spec(const SpecRef& spec) {
  if (spec == nullptr || spec->leaves().empty() || !is_hidden(spec->leaves().back())) return spec;
  return part_of(*spec, false);
}

void HiddenLeaves::split(Chunk& whole, Chunk& elements, Chunk& made) {
  const SpecRef& spec = whole.spec();
  if (spec != nullptr && (whole_ == nullptr || (whole_ != spec && *whole_ != *spec))) {
    whole_ = spec;
    elements_ = part_of(*whole_, false);
    made_ = part_of(*whole_, true);
  }
  const uint32_t rows = whole.rows();
  elements.reset(spec == nullptr ? nullptr : elements_, rows);
  made.reset(spec == nullptr ? nullptr : made_, rows);
  for (auto& [row, failure] : whole.failures()) elements.fail(row, std::move(failure));
  elements.keep_all(whole);
  if (spec == nullptr) return;
  const size_t leaves = elements_->leaves().size();
  for (uint32_t row = 0; row < rows; ++row) {
    if ((whole.alive() >> row & 1) == 0) continue;
    for (size_t leaf = 0; leaf < leaves; ++leaf) {
      elements.view(leaf, row, whole.at(leaf, row), whole.shape(leaf, row));
    }
    for (size_t leaf = 0; leaf < made_->leaves().size(); ++leaf) {
      made.view(leaf, row, whole.at(leaves + leaf, row), whole.shape(leaves + leaf, row));
    }
  }
}

}  // namespace penstock
