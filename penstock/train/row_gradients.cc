#include "penstock/train/row_gradients.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "penstock/base/error.h"

namespace penstock::train {

void RowGradients::set(const char* operation, const Block& block, std::span<const int64_t> rows,
                       std::span<const float> values) {
  auto refuse = [&](const std::string& why) {
    return Error(Code::kInvalidArgument, operation, "block '" + block.name + "' " + why);
  };
  if (block.shape.empty()) throw refuse("is one number and has no rows");
  const int64_t count = block.shape[0];
  for (int64_t row : rows) {
    if (row < 0 || row >= count) {
      throw refuse("has " + std::to_string(count) + " rows; there is no row " +
                   std::to_string(row));
    }
  }
  width_ = count == 0 ? 0 : block.size / static_cast<size_t>(count);
  if (values.size() != rows.size() * width_) {
    throw refuse("has rows of " + std::to_string(width_) +
                 " numbers: " + std::to_string(rows.size()) + " rows need " +
                 std::to_string(rows.size() * width_) + ", not " + std::to_string(values.size()));
  }
  if (std::ranges::adjacent_find(rows, std::ranges::greater_equal()) == rows.end()) {
    rows_ = rows;
    values_ = values;
    return;
  }
  order_.resize(rows.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::ranges::stable_sort(order_, {}, [&](size_t i) { return rows[i]; });
  own_rows_.clear();
  own_values_.clear();
  for (size_t i : order_) {
    const auto from = values.subspan(i * width_, width_);
    if (own_rows_.empty() || own_rows_.back() != rows[i]) {
      own_rows_.push_back(rows[i]);
      own_values_.insert(own_values_.end(), from.begin(), from.end());
      continue;
    }
    const auto to = std::span(own_values_).last(width_);
    std::ranges::transform(to, from, to.begin(), std::plus());
  }
  rows_ = own_rows_;
  values_ = own_values_;
}

}  // namespace penstock::train
