#include "penstock/train/tower.h"

#include <algorithm>
#include <string>

#include "penstock/base/error.h"
#include "penstock/train/layout.h"

namespace penstock::train {
namespace {

// Floats per tower that are added up at a time: they stay in the cache.
constexpr size_t kPiece = 4096;

void scale(float* __restrict values, float by, size_t n) {
  if (by == 1) return;
  if (by == 0) {
    std::fill_n(values, n, 0.0f);
    return;
  }
  for (size_t i = 0; i < n; ++i) values[i] *= by;
}

void add(float* __restrict to, const float* __restrict from, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] += from[i];
}

}  // namespace

void Tower::add_rows(std::string_view block, std::span<const int64_t> rows,
                     std::span<const float> values) {
  use_rows();
  if (weight_ == 0) return;
  checked_.set("Tower::add_rows", parameters_->layout().at(block), rows, values);
  const auto used = rows_.begin() + static_cast<ptrdiff_t>(used_);
  auto found = std::find_if(rows_.begin(), used, [&](const Rows& r) { return r.block == block; });
  if (found == used) {
    if (used == rows_.end()) {
      rows_.emplace_back();
      found = rows_.end() - 1;
    }
    found->block = block;
    ++used_;
  }
  found->rows.insert(found->rows.end(), rows.begin(), rows.end());
  found->values.insert(found->values.end(), values.begin(), values.end());
}

void Tower::clear() {
  for (Rows& rows : rows_) {
    rows.rows.clear();
    rows.values.clear();
  }
  used_ = 0;
  gives_rows_ = false;
}

void add_towers(std::span<const Slab> gradients, std::span<const float> weights, size_t begin,
                size_t end) {
  auto refuse = [](const std::string& why) { return Error(Code::kInvalidArgument, "Towers", why); };
  const size_t towers = gradients.size();
  if (towers == 0 || weights.size() != towers) throw refuse("give one weight for each tower");
  for (const Slab& slab : gradients.subspan(1)) {
    gradients[0].layout().require_equal(slab.layout(), "Towers", "another tower's gradients");
  }
  if (begin > end || end > gradients[0].layout().floats()) {
    throw refuse("there are no floats " + std::to_string(begin) + " to " + std::to_string(end));
  }
  for (size_t at = begin; at < end; at += kPiece) {
    const size_t n = std::min(kPiece, end - at);
    const auto piece = [&](size_t tower) { return gradients[tower].values().data() + at; };
    for (size_t tower = 0; tower < towers; ++tower) scale(piece(tower), weights[tower], n);
    for (size_t stride = 1; stride < towers; stride *= 2) {
      for (size_t tower = 0; tower + stride < towers; tower += 2 * stride) {
        add(piece(tower), piece(tower + stride), n);
      }
    }
    for (size_t tower = 1; tower < towers; ++tower) std::fill_n(piece(tower), n, 0.0f);
  }
}

}  // namespace penstock::train
