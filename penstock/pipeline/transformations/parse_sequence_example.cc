#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/example_parser.h"
#include "penstock/pipeline/transformations/example_columns.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {
namespace {

using Form = ExampleFeature::Form;

// The shape of one step of a fixed list.
Shape step_shape(const ExampleFeature& list) { return leaves_of(list)[0].shape; }

std::vector<Leaf> leaves_of_list(const ExampleFeature& list) {
  const DType dtype = list.output();
  if (list.form == Form::kFixed) {
    Shape shape = step_shape(list);
    shape.insert(shape.begin(), -1);
    return {{list.name, LeafKind::kRagged, dtype, std::move(shape)}};
  }
  const LeafKind kind = list.form == Form::kString ? LeafKind::kBytes : LeafKind::kRagged;
  return {{list.name, kind, dtype, {-1}},
          {list.name + "/lengths", LeafKind::kRagged, DType::kInt64, {-1}}};
}

class ParseSequenceExampleRun : public OpRun {
 public:
  ParseSequenceExampleRun(const std::vector<ExampleFeature>& context,
                          const std::vector<ExampleFeature>& lists, size_t record, Scratch& scratch)
      : leaf_(record),
        parser_(context, lists),
        columns_(context, static_cast<uint32_t>(record), scratch),
        steps_(lists.size()) {
    uint32_t leaf = columns_.end();
    for (const ExampleFeature& list : lists) {
      const bool fixed = list.form == Form::kFixed;
      Shape shape = fixed ? step_shape(list) : Shape{};
      shape.insert(shape.begin(), 0);
      lists_.push_back({leaf, fixed, size_of(list.output()), std::move(shape)});
      leaf += fixed ? 1 : 2;
    }
  }

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    columns_.begin(out, row);
    const uint32_t end = row + keys.size();
    for (; row < end; ++row) {
      const std::span<ExampleValue> values = columns_.next();
      if ((in.alive() >> row & 1) == 0) continue;
      const std::span record{in.at(leaf_, row), static_cast<size_t>(in.shape(leaf_, row)[0])};
      if (!parser_.parse(record, values, steps_, columns_)) [[unlikely]] {
        out.fail(row, {"", 0,
                       std::make_exception_ptr(Error(Code::kDataLoss, "parse_sequence_example",
                                                     parser_.failure_text()))});
        continue;
      }
      columns_.give(out, row);
      for (size_t i = 0; i < lists_.size(); ++i) give(lists_[i], steps_[i], out, row);
    }
  }

 private:
  struct List {
    uint32_t leaf;
    bool fixed;
    size_t value_bytes;
    Shape shape;  // shape of a row: the steps, then the shape of a fixed step
  };

  void give(List& list, const StepsValue& value, Chunk& out, uint32_t row) {
    list.shape[0] = static_cast<int64_t>(list.fixed ? value.steps : value.count);
    columns_.view(out, list.leaf, row, value.data, list.value_bytes, value.count, list.shape);
    if (list.fixed) return;
    const auto steps = static_cast<int64_t>(value.steps);
    columns_.view(out, list.leaf + 1, row, reinterpret_cast<const std::byte*>(value.lengths.data()),
                  sizeof(int64_t), value.steps, {&steps, 1});
  }

  const size_t leaf_;  // the record's leaf; in the result that of the first feature
  SequenceExampleParser parser_;
  ExampleColumns columns_;  // features of the context
  std::vector<StepsValue> steps_;
  std::vector<List> lists_;
};

class ParseSequenceExampleOp : public Op {
 public:
  ParseSequenceExampleOp(std::vector<ExampleFeature> context, std::vector<ExampleFeature> lists,
                         std::string field)
      : context_(std::move(context)),
        lists_(std::move(lists)),
        field_("parse_sequence_example", std::move(field)) {
    const SequenceExampleParser checked(context_, lists_);
    std::vector<Leaf> leaves;
    for (const ExampleFeature& feature : context_) {
      for (Leaf& leaf : leaves_of(feature)) leaves.push_back(std::move(leaf));
    }
    for (const ExampleFeature& list : lists_) {
      for (Leaf& leaf : leaves_of_list(list)) leaves.push_back(std::move(leaf));
    }
    parsed_ = std::make_shared<ElementSpec>(std::move(leaves));
  }

  std::string title() const override { return field_.title(); }
  SpecRef result(const ElementSpec& in) const override { return field_.result(in, parsed_); }
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override {
    return field_.passes(in, parsed_->leaves().size());
  }
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override {
    return std::make_unique<ParseSequenceExampleRun>(context_, lists_, field_.leaf(*in),
                                                     context.scratch);
  }

 private:
  std::vector<ExampleFeature> context_, lists_;
  RecordField field_;
  SpecRef parsed_;
};

}  // namespace

OpRef parse_sequence_example(std::vector<ExampleFeature> context, std::vector<ExampleFeature> lists,
                             std::string field) {
  return std::make_shared<ParseSequenceExampleOp>(std::move(context), std::move(lists),
                                                  std::move(field));
}

}  // namespace penstock
