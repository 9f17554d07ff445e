#include "penstock/train/tower.h"

#include <algorithm>

namespace penstock::train {

void Tower::add_rows(std::string_view block, std::span<const int64_t> rows,
                     std::span<const float> values) {
  use_rows();
  if (weight_ == 0) return;
  checked_.set("Tower::add_rows", parameters_.layout().at(block), rows, values);
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

}  // namespace penstock::train
