#pragma once

#include <cstdint>
#include <span>

#include "penstock/image/planes.h"

namespace penstock::image {

// Samples of Cb and Cr whose pixels are looked at, or computed, together.
inline constexpr int kSegment = 16;
using Rows = std::span<const uint8_t* const>;

// A row of samples of Cb or Cr, the nearer one and the other, that a row of pixels is between.
struct ColourRows {
  const uint8_t *near_cb, *far_cb, *near_cr, *far_cr;
};

// What cutting off pixels beyond black or a full colour changes, in integers: the same numbers from
// every set of functions. Reads kPlanePadding bytes on both sides of a row.
struct ExcessKernels {
  const char* name;
  // Whether any pixel of a segment may be beyond black or a full colour, and so would be cut off
  // there: a flag for each of `segments`. `y`: the rows of the pixels; `cb`, `cr`: those of the
  // samples, from one above to one below. Reads samples on both sides. Each sample is looked at
  // with the extremes of its column. 0: no pixel is beyond by half a level or more.
  void (*beyond)(Rows y, int across, Rows cb, Rows cr, int segments, uint8_t* flags);
  // What cutting off changes in red, green and blue of a row of a segment's pixels, in units of
  // 1/128; less than half a level is 0. Which of them change: 1, 2 and 4, or'ed.
  int (*excess)(const uint8_t* y, const ColourRows& colours, int across, bool smooth,
                int16_t* const* to);
  // Adds numbers times weight / 65536 to sums, of segments of `pixels`, where bit `colour` of
  // `changed` is set.
  void (*add_changed)(const int16_t* numbers, const uint8_t* changed, int colour, int segments,
                      int pixels, int weight, int16_t* sums);
};

// Those of this machine, the best ones first.
std::span<const ExcessKernels> excess_kernels();

}  // namespace penstock::image
