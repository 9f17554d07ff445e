#include "penstock/train/gradient_parts.h"

#include <algorithm>
#include <functional>

#include "penstock/base/error.h"
#include "penstock/train/gradient_checks.h"
#include "penstock/train/kernels.h"

namespace penstock::train {

void GradientParts::check_apart_from(const Slab& weights) const {
  const auto of = weights.values();
  for (const Given& each : given_) {
    const std::less<const float*> before;
    const bool apart = each.values.empty() || !before(each.values.data(), of.data() + of.size()) ||
                       !before(of.data(), each.values.data() + each.values.size());
    if (apart) continue;
    throw Error(Code::kInvalidArgument, "apply",
                "the gradient of block '" + each.block +
                    "' lies in the weights, which change while it is read; give a copy");
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
                      (twice ? "is there twice"
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
