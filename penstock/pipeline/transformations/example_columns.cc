#include "penstock/pipeline/transformations/example_columns.h"

#include <cstring>

namespace penstock {

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
  // On the wire numbers lie anywhere, but whoever works on an array wants them in their places.
  if (reinterpret_cast<uintptr_t>(data) % value_bytes != 0) {
    std::byte* copy = take(count * value_bytes);
    std::memcpy(copy, data, count * value_bytes);
    data = copy;
  }
  out.view(leaf, row, data, shape);
}

}  // namespace penstock
