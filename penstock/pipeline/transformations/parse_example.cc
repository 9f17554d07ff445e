#include "penstock/pipeline/transformations/parse_example.h"

#include <cstring>
#include <memory>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/example_parser.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/transformations/operations.h"

namespace penstock {

std::string RecordField::title() const {
  return field_.empty() ? operation_ : std::string(operation_) + "(" + field_ + ")";
}

size_t RecordField::leaf(const ElementSpec& in) const {
  auto refuse = [&](const std::string& why) {
    throw Error(Code::kInvalidArgument, operation_, why + " in " + in.to_string());
  };
  if (!field_.empty()) {
    const std::optional<size_t> leaf = in.find(field_);
    if (!leaf) refuse("there is no field '" + field_ + "'");
    if (in.leaves()[*leaf].kind != LeafKind::kBytes) refuse("'" + field_ + "' is no byte string");
    return *leaf;
  }
  std::optional<size_t> found;
  for (size_t i = 0; i < in.leaves().size(); ++i) {
    if (in.leaves()[i].kind != LeafKind::kBytes) continue;
    if (found) refuse("say by `field` which of several byte strings is meant");
    found = i;
  }
  if (!found) refuse("there is no byte string, as Dataset::tfrecord gives them,");
  return *found;
}

SpecRef RecordField::result(const ElementSpec& in, const SpecRef& parsed) const {
  const size_t at = leaf(in);
  return with_leaf_replaced(in, at, *parsed);
}

std::vector<std::optional<size_t>> RecordField::passes(const ElementSpec& in,
                                                       size_t parsed_leaves) const {
  const size_t at = leaf(in);
  std::vector<std::optional<size_t>> passes(in.leaves().size() - 1 + parsed_leaves);
  for (size_t i = 0; i < at; ++i) passes[i] = i;
  for (size_t i = at + 1; i < in.leaves().size(); ++i) passes[i - 1 + parsed_leaves] = i;
  return passes;
}

using Form = ExampleFeature::Form;

std::vector<Leaf> leaves_of(const ExampleFeature& feature) {
  const DType dtype = feature.output();
  switch (feature.form) {
    case Form::kFixed: {
      const bool number = feature.type != ExampleFeature::Type::kBytes && feature.count == 1;
      Shape shape = feature.shape ? *feature.shape
                    : number      ? Shape{}
                                  : Shape{static_cast<int64_t>(feature.count)};
      return {{feature.name, LeafKind::kDense, dtype, std::move(shape)}};
    }
    case Form::kRagged:
      return {{feature.name, LeafKind::kRagged, dtype, {-1}}};
    case Form::kString:
      return {{feature.name, LeafKind::kBytes, dtype, {-1}}};
    case Form::kStrings:
      return {{feature.name, LeafKind::kBytes, dtype, {-1}},
              {feature.name + "/lengths", LeafKind::kRagged, DType::kInt64, {-1}}};
  }
  return {};
}

ExampleColumns::ExampleColumns(std::span<const ExampleFeature> features, uint32_t first,
                               Scratch& scratch)
    : values_(features.size()), end_(first), scratch_(scratch) {
  for (uint32_t i = 0; i < features.size(); ++i) {
    const Form form = features[i].form;
    if (form == Form::kFixed) {
      fixed_.push_back({i, end_, nullptr, 0});
    } else {
      variable_.push_back({i, end_, form == Form::kStrings, size_of(features[i].output())});
    }
    end_ += form == Form::kStrings ? 2 : 1;
  }
}

void ExampleColumns::begin(Chunk& out, uint32_t row) {
  for (Fixed& fixed : fixed_) {
    std::byte* first = out.dense(fixed.leaf);
    fixed.stride = out.stride(fixed.leaf);
    fixed.next = first + row * fixed.stride;
  }
}

std::span<ExampleValue> ExampleColumns::next() {
  for (Fixed& fixed : fixed_) {
    values_[fixed.feature].row = fixed.next;
    fixed.next += fixed.stride;
  }
  return values_;
}

void ExampleColumns::give(Chunk& out, uint32_t row) {
  for (const Variable& variable : variable_) {
    const ExampleValue& value = values_[variable.feature];
    const auto count = static_cast<int64_t>(value.count);
    view(out, variable.leaf, row, value.data, variable.value_bytes, value.count, {&count, 1});
    if (!variable.strings) continue;
    const auto strings = static_cast<int64_t>(value.lengths.size());
    out.view(variable.leaf + 1, row, reinterpret_cast<const std::byte*>(value.lengths.data()),
             {&strings, 1});
  }
}

void ExampleColumns::view(Chunk& out, size_t leaf, uint32_t row, const std::byte* data,
                          size_t value_bytes, uint64_t count, std::span<const int64_t> shape) {
  // Values in a record may be misaligned, but users of arrays need them aligned.
  if (reinterpret_cast<uintptr_t>(data) % value_bytes != 0) {
    std::byte* copy = take(count * value_bytes);
    std::memcpy(copy, data, count * value_bytes);
    data = copy;
  }
  out.view(leaf, row, data, shape);
}

namespace {

class ParseExampleRun : public OpRun {
 public:
  ParseExampleRun(const std::vector<ExampleFeature>& features, size_t leaf, Scratch& scratch)
      : leaf_(leaf), parser_(features), columns_(features, static_cast<uint32_t>(leaf), scratch) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    columns_.begin(out, row);
    const uint32_t end = row + keys.size();
    for (; row < end; ++row) {
      const std::span<ExampleValue> values = columns_.next();
      if ((in.alive() >> row & 1) == 0) continue;
      const std::span record{in.at(leaf_, row), static_cast<size_t>(in.shape(leaf_, row)[0])};
      if (!parser_.parse(record, values, columns_)) [[unlikely]] {
        out.fail(row, {"", 0,
                       std::make_exception_ptr(
                           Error(Code::kDataLoss, "parse_example", parser_.failure_text()))});
        continue;
      }
      columns_.give(out, row);
    }
  }

 private:
  const size_t leaf_;  // the record's leaf; in the result that of the first feature
  ExampleParser parser_;
  ExampleColumns columns_;
};

class ParseExampleOp : public Op {
 public:
  ParseExampleOp(std::vector<ExampleFeature> features, std::string field)
      : features_(std::move(features)), field_("parse_example", std::move(field)) {
    check(features_, "parse_example");
    std::vector<Leaf> leaves;
    for (const ExampleFeature& feature : features_) {
      for (Leaf& leaf : leaves_of(feature)) leaves.push_back(std::move(leaf));
    }
    parsed_ = std::make_shared<ElementSpec>(std::move(leaves));
  }

  std::string title() const override { return field_.title(); }
  SpecRef result(const ElementSpec& in) const override { return field_.result(in, parsed_); }
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override {
    return field_.passes(in, parsed_->leaves().size());
  }
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override {
    return std::make_unique<ParseExampleRun>(features_, field_.leaf(*in), context.scratch);
  }

 private:
  std::vector<ExampleFeature> features_;
  RecordField field_;
  SpecRef parsed_;
};

}  // namespace

OpRef parse_example(std::vector<ExampleFeature> features, std::string field) {
  return std::make_shared<ParseExampleOp>(std::move(features), std::move(field));
}

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
