#include "penstock/train/gradient_parts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "penstock/base/error.h"
#include "penstock/train/kernels.h"

namespace penstock::train {

std::string first_not_finite(std::span<const float> values, const Shape& shape) {
  size_t at = 0;
  while (at < values.size() && std::isfinite(values[at])) ++at;
  if (at == values.size()) return "";
  const std::string what = std::isnan(values[at]) ? "nan" : values[at] < 0 ? "-inf" : "inf";
  Shape place(shape.size());
  for (size_t axis = shape.size(); axis-- > 0;) {
    const auto length = static_cast<size_t>(shape[axis]);
    place[axis] = static_cast<int64_t>(at % length);
    at /= length;
  }
  return "is " + what + (shape.empty() ? "" : " at " + to_string(place));
}

std::string describe_not_finite(const Slab& gradients) {
  for (const Block& block : gradients.layout().blocks()) {
    const std::string found = first_not_finite(gradients.values_of(block), block.shape);
    if (!found.empty()) return "block '" + block.name + "' " + found;
  }
  return "it was changed while it was applied";
}

void check_scale(const char* operation, double scale) {
  if (std::isfinite(scale)) return;
  throw Error(Code::kInvalidArgument, operation,
              "scale is " + std::to_string(scale) + "; it must be finite");
}

void check_gradients(const Slab& parameters, const Slab& gradients) {
  parameters.layout().require_equal(gradients.layout(), "apply", "the gradient");
  if (parameters.values().data() == gradients.values().data()) {
    throw Error(Code::kInvalidArgument, "apply",
                "the gradients are the parameters themselves; use parameters.gradients()");
  }
}

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

void GradientParts::check_apart_from(const char* operation, const Slab& weights) const {
  const auto of = weights.values();
  for (const Given& each : given_) {
    const std::less<const float*> before;
    const bool apart = each.values.empty() || !before(each.values.data(), of.data() + of.size()) ||
                       !before(of.data(), each.values.data() + each.values.size());
    if (apart) continue;
    throw Error(Code::kInvalidArgument, operation,
                "the gradient of block '" + each.block +
                    "' lies in the weights that this call changes; give a copy");
  }
}

void GradientParts::set(const char* operation, const Layout& layout,
                        std::span<const GradientPart> parts) {
  if (rows_.size() < parts.size()) rows_.resize(parts.size());
  given_.clear();
  pieces_.clear();
  for (size_t i = 0; i < parts.size(); ++i) {
    const GradientPart& part = parts[i];
    const Block& block = layout.at(part.block);
    const bool twice =
        std::ranges::any_of(given_, [&](const Given& other) { return other.block == block.name; });
    if (twice || (!part.of_rows && part.values.size() != block.size)) {
      throw Error(Code::kInvalidArgument, operation,
                  "block '" + block.name + "' " +
                      (twice ? "is given twice"
                             : "has " + std::to_string(block.size) + " numbers, its gradient " +
                                   std::to_string(part.values.size())));
    }
    if (!part.of_rows) {
      given_.push_back({block.name, block.shape, part.values, false});
      if (block.size > 0) pieces_.push_back({block.offset, part.values});
      continue;
    }
    RowGradients& rows = rows_[i];
    rows.set(operation, block, part.rows, part.values);
    const size_t width = rows.width();
    given_.push_back({block.name,
                      {static_cast<int64_t>(rows.rows().size()), static_cast<int64_t>(width)},
                      rows.values(),
                      true});
    for (size_t row = 0; width > 0 && row < rows.rows().size(); ++row) {
      pieces_.push_back({block.offset + static_cast<size_t>(rows.rows()[row]) * width,
                         rows.values().subspan(row * width, width)});
    }
  }
  if (!std::ranges::is_sorted(pieces_, {}, &Piece::at)) std::ranges::sort(pieces_, {}, &Piece::at);
}

size_t GradientParts::floats() const {
  size_t floats = 0;
  for (const Given& each : given_) floats += each.values.size();
  return floats;
}

bool GradientParts::finite() const {
  return std::ranges::all_of(given_,
                             [](const Given& each) { return kernels::finite(each.values); });
}

double GradientParts::squares() const {
  double sum = 0;
  for (const Given& each : given_) sum += kernels::sum_of_squares(each.values);
  return sum;
}

std::string GradientParts::describe_not_finite() const {
  for (const Given& each : given_) {
    const std::string found = first_not_finite(each.values, each.shape);
    if (found.empty()) continue;
    return "block '" + each.block + "' " + found +
           (each.of_rows ? " of its rows in ascending order" : "");
  }
  return "";
}

}  // namespace penstock::train
