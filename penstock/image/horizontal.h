#pragma once

#include <cstdint>
#include <vector>

#include "penstock/image/resize_filter.h"

namespace penstock::image {

// The weights of a horizontal pass, for vectors: the wanted places in groups of four.
struct HorizontalGroups {
  // Numbers for a pair of inputs of each place of a group: two registers of 16 low parts and 16
  // high ones.
  static constexpr size_t kPairWeights = 64;

  int pairs = 0;   // of inputs of a place, in 16 bytes; 0: more than those, in `fours`
  int fours = 0;   // the inputs of a place, four after four
  int count = 0;   // of groups
  int inside = 0;  // of these groups no byte behind the row is read
  std::vector<uint32_t> begins;  // the byte in the row of the first input of each place
  std::vector<int16_t> weights;
};

// Rows that are resized horizontally: weighted sums of pixels that are side by side, in 32-bit
// integers, the same on every machine. One thread.
class HorizontalPass {
 public:
  // Bytes before and behind a resized row that are written, too.
  static constexpr size_t kMargin = 16;

  // Nothing is computed if the scale and the channels are those of the last call. REQUIRED: as
  // AxisWeights::reset.
  void reset(const AxisScale& scale, int channels);

  const AxisWeights& axis() const { return axis_; }
  // `in` points to column axis().first_input(), and has the columns up to axis().end_input().
  // `to` has space for the wanted places, and kMargin bytes on both sides; `flip`: they are
  // mirrored.
  void row(const uint8_t* in, uint8_t* to, bool flip);

 private:
  void make_groups(int channels);

  AxisWeights axis_;
  int count_ = 0, channels_ = 0;
  size_t row_bytes_ = 0;  // of the columns that are needed
  HorizontalGroups groups_;
  std::vector<uint8_t> end_;  // the end of a row, with bytes behind it
  size_t end_begin_ = 0;      // where it begins
};

}  // namespace penstock::image
