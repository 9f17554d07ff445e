#include "penstock/pipeline/transformations/parse_example.h"

#include <cstring>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/io/example_parser.h"

namespace penstock {
namespace {

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

class Run : public OpRun, private ExampleMemory {
 public:
  Run(const std::vector<ExampleFeature>& features, Scratch& scratch)
      : parser_(features), values_(features.size()), scratch_(scratch) {
    uint32_t leaf = 0;
    for (uint32_t i = 0; i < features.size(); ++i) {
      const Form form = features[i].form;
      if (form == Form::kFixed) {
        fixed_.push_back({i, leaf, nullptr, 0});
      } else {
        variable_.push_back({i, leaf, form, size_of(features[i].output())});
      }
      leaf += form == Form::kStrings ? 2 : 1;
    }
  }

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    for (Fixed& fixed : fixed_) {
      std::byte* first = out.dense(fixed.leaf);
      fixed.stride = out.stride(fixed.leaf);
      fixed.next = first + row * fixed.stride;
    }
    const uint32_t end = row + keys.size();
    for (; row < end; ++row) {
      for (Fixed& fixed : fixed_) {
        values_[fixed.feature].row = fixed.next;
        fixed.next += fixed.stride;
      }
      if ((in.alive() >> row & 1) == 0) continue;
      const std::span record{in.at(0, row), static_cast<size_t>(in.shape(0, row)[0])};
      if (!parser_.parse(record, values_, *this)) [[unlikely]] {
        out.fail(row, {"", 0,
                       std::make_exception_ptr(
                           Error(Code::kDataLoss, "parse_example", parser_.failure_text()))});
        continue;
      }
      for (const Variable& variable : variable_) give(variable, out, row);
    }
  }

 private:
  struct Fixed {
    uint32_t feature, leaf;
    std::byte* next;  // row to be written
    uint64_t stride;
  };
  struct Variable {
    uint32_t feature, leaf;
    Form form;
    uint64_t value_bytes;
  };

  std::byte* take(size_t bytes) override { return scratch_.take(bytes); }

  void give(const Variable& variable, Chunk& out, uint32_t row) {
    const ExampleValue& value = values_[variable.feature];
    const std::byte* data = value.data;
    // On the wire numbers lie anywhere, but whoever works on an array wants them in their places.
    if (reinterpret_cast<uintptr_t>(data) % variable.value_bytes != 0) {
      std::byte* copy = take(value.count * variable.value_bytes);
      std::memcpy(copy, data, value.count * variable.value_bytes);
      data = copy;
    }
    const auto count = static_cast<int64_t>(value.count);
    out.view(variable.leaf, row, data, {&count, 1});
    if (variable.form != Form::kStrings) return;
    const auto strings = static_cast<int64_t>(value.lengths.size());
    out.view(variable.leaf + 1, row, reinterpret_cast<const std::byte*>(value.lengths.data()),
             {&strings, 1});
  }

  ExampleParser parser_;
  std::vector<ExampleValue> values_;  // by feature
  std::vector<Fixed> fixed_;
  std::vector<Variable> variable_;
  Scratch& scratch_;
};

}  // namespace

ParseExampleOp::ParseExampleOp(std::vector<ExampleFeature> features, std::string nest)
    : features_(std::move(features)) {
  check(features_, "parse_example");
  std::vector<Leaf> leaves;
  for (const ExampleFeature& feature : features_) {
    for (Leaf& leaf : leaves_of(feature)) leaves.push_back(std::move(leaf));
  }
  spec_ = std::make_shared<ElementSpec>(std::move(leaves), std::move(nest));
}

SpecRef ParseExampleOp::result(const ElementSpec& in) const {
  if (in.leaves().size() != 1 || in.leaves()[0].kind != LeafKind::kBytes) {
    throw Error(Code::kInvalidArgument, "parse_example",
                "elements must be one byte string, as Dataset::tfrecord gives them; these are " +
                    in.to_string());
  }
  return spec_;
}

std::unique_ptr<OpRun> ParseExampleOp::bind(SpecRef, Context& context) const {
  return std::make_unique<Run>(features_, context.scratch);
}

OpRef parse_example(std::vector<ExampleFeature> features) {
  return std::make_shared<ParseExampleOp>(std::move(features));
}

}  // namespace penstock
