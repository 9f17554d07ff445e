#include "penstock/pipeline/transformations/example_columns.h"

#include <cstring>
#include <memory>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/element.h"

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

}  // namespace penstock
