#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/train/layout.h"

namespace penstock::train {

// Gradients of some rows of a block, each row once and in ascending order: rows that were given
// several times are added up, in the order in which they were given. Keeps its memory from one use
// to the next. One thread.
class RowGradients {
 public:
  // values: rows.size() rows of the block, one after the other. Both must live while this is used.
  // Error kInvalidArgument: the block has no rows, a row is not in it, or values have another size.
  void set(const char* operation, const Block& block, std::span<const int64_t> rows,
           std::span<const float> values);

  std::span<const int64_t> rows() const { return rows_; }
  std::span<const float> values() const { return values_; }  // rows().size() * width()
  size_t width() const { return width_; }                    // floats of a row

 private:
  std::span<const int64_t> rows_;
  std::span<const float> values_;
  size_t width_ = 0;
  std::vector<size_t> order_;
  std::vector<int64_t> own_rows_;
  std::vector<float> own_values_;
};

}  // namespace penstock::train
