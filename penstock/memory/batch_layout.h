#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "penstock/memory/dtype.h"
#include "penstock/memory/tensor.h"

namespace penstock {

// One column of a batch of samples: each sample has an array of this type and shape.
struct Field {
  std::optional<DType> dtype;  // nullopt: opaque elements (structured, strings, other byte orders)
  uint32_t itemsize = 0;       // bytes of an element; set by the constructor from a DType
  Shape shape;                 // of one sample
  uint64_t row_bytes = 0;      // of one sample: set by RowLayout
  uint64_t offset = 0;         // of the column from the batch's start: set by RowLayout

  static Field of(DType type, Shape sample_shape);
  static Field opaque(uint32_t itemsize, Shape sample_shape);
};

// Where each sample's row of each field lies in one block: field after field, each column 64-byte
// aligned and contiguous, so that a column is an array of shape (rows, ...). A value.
class RowLayout {
 public:
  static constexpr uint64_t kAlignment = 64;

  RowLayout() = default;
  // Error kInvalidArgument on negative lengths or sizes that overflow. rows >= 0.
  RowLayout(std::vector<Field> fields, uint64_t rows);

  const std::vector<Field>& fields() const { return fields_; }
  uint64_t rows() const { return rows_; }
  uint64_t bytes() const { return bytes_; }  // of the block; a multiple of kAlignment

  // Unchecked: field < fields().size(), row < rows().
  std::byte* row(std::byte* base, size_t field, uint64_t row) const {
    const Field& f = fields_[field];
    return base + f.offset + row * f.row_bytes;
  }
  std::byte* column(std::byte* base, size_t field) const { return base + fields_[field].offset; }

  // Removes the lost rows from the rows before `end` by moving the others together. `lost`:
  // ascending. Rows from `end` on are not moved.
  void compact_rows(std::byte* base, std::span<const uint32_t> lost,
                    uint64_t end = UINT64_MAX) const;

  // (rows_used, *sample shape); rows_used <= rows(), less for a batch that is not full.
  Shape column_shape(size_t field, uint64_t rows_used) const;

 private:
  std::vector<Field> fields_;
  uint64_t rows_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace penstock
