#include "penstock/memory/batch_layout.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
namespace {

// Far above any memory, far below overflow of int64_t strides and offsets.
constexpr uint64_t kLargest = uint64_t{1} << 56;

uint64_t checked_product(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product) || product > kLargest) {
    throw Error(Code::kInvalidArgument, "RowLayout",
                std::to_string(a) + " times " + std::to_string(b) + " bytes is too large");
  }
  return product;
}

}  // namespace

Field Field::of(DType type, Shape sample_shape) {
  return {type, static_cast<uint32_t>(size_of(type)), std::move(sample_shape), 0, 0};
}

Field Field::opaque(uint32_t itemsize, Shape sample_shape) {
  return {std::nullopt, itemsize, std::move(sample_shape), 0, 0};
}

RowLayout::RowLayout(std::vector<Field> fields, uint64_t rows)
    : fields_(std::move(fields)), rows_(rows) {
  for (Field& field : fields_) {
    if (field.dtype) {
      if (!is_valid(*field.dtype)) {
        throw Error(Code::kInvalidArgument, "RowLayout", "a field has an unknown dtype");
      }
      field.itemsize = static_cast<uint32_t>(size_of(*field.dtype));
    }
    field.row_bytes =
        checked_product(field.itemsize, static_cast<uint64_t>(element_count(field.shape)));
    field.offset = bytes_;
    uint64_t column = checked_product(field.row_bytes, rows_);
    bytes_ += (column + kAlignment - 1) / kAlignment * kAlignment;
    checked_product(bytes_, 1);
  }
}

Shape RowLayout::column_shape(size_t field, uint64_t rows_used) const {
  Shape shape{static_cast<int64_t>(rows_used)};
  const Shape& sample = fields_[field].shape;
  shape.insert(shape.end(), sample.begin(), sample.end());
  return shape;
}

void RowLayout::compact_rows(std::byte* base, std::span<const uint32_t> lost,
                             uint64_t end_of_rows) const {
  end_of_rows = std::min(end_of_rows, rows_);
  for (size_t f = 0; f < fields_.size(); ++f) {
    for (size_t i = 0; i < lost.size(); ++i) {
      uint64_t from = lost[i] + uint64_t{1};
      uint64_t end = i + 1 < lost.size() ? lost[i + 1] : end_of_rows;
      std::memmove(row(base, f, from - 1 - i), row(base, f, from),
                   (end - from) * fields_[f].row_bytes);
    }
  }
}

}  // namespace penstock
