#pragma once

#include <cstdint>
#include <vector>

#include "penstock/image/resize_filter.h"

namespace penstock::image {

// Rows that are resized horizontally: weighted sums of pixels that are side by side, in 32-bit
// integers, the same on every machine. One thread.
class HorizontalPass {
 public:
  // Nothing is computed if the scale is that of the last call. REQUIRED: as AxisWeights::reset.
  void reset(const AxisScale& scale);

  const AxisWeights& axis() const { return axis_; }
  // `in` points to column axis().first_input(), and has the columns up to axis().end_input().
  // `to` has room for the wanted places; `flip`: they are mirrored.
  void row(const uint8_t* in, uint8_t* to, int channels, bool flip) const;

 private:
  void spread();

  AxisWeights axis_;
  int count_ = 0;
  // For vectors: the weights of each wanted place, four inputs after four.
  int fours_ = 0;
  std::vector<int16_t> spread_;
};

}  // namespace penstock::image
