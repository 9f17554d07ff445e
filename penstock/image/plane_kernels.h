#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "penstock/image/plane_weights.h"
#include "penstock/image/planes.h"

namespace penstock::image {

// The weights of a horizontal pass: the wanted places in groups of eight, and the samples of each
// in blocks of eight.
struct PlaceGroups {
  static constexpr int kPlaces = 8, kTaps = 8;
  static constexpr int kWeightBits = 14;

  // `weights` add up to 2^kWeightBits.
  void reset(const PlaneWeights& weights, int wanted);

  int count = 0, blocks = 0;
  std::vector<int32_t> begins;   // of each place, from weights.first() on
  std::vector<int16_t> weights;  // of a block: places 0, 4, 1, 5, 2, 6, 3, 7

  // The same for registers of 64 bytes: sixteen places, each of as many pairs of samples.
  static constexpr int kWide = 16;
  void make_wide(const PlaneWeights& weights, int wanted);
  int wide = 0;  // groups of sixteen; 0: the samples of one are in more than two registers
  int pairs = 0;
  bool in_one = false;               // the samples of a group are in one register
  std::vector<int32_t> wide_begins;  // the first sample of each group
  std::vector<int16_t>
      wide_samples;  // of each place, twice: its first sample in the group, the next
  std::vector<int16_t> wide_weights;  // of a pair: of each place, two weights
};

// The arithmetic of PlaneResizer, in integers: the same numbers from every set of functions.
//
// Samples are bytes. Sums over rows are (value - 128) * 256. Sums over both directions are
// (value - 128) * 64, for Cb and Cr the distance from grey.
struct PlaneKernels {
  const char* name;
  // A weighted sum of rows; weights add up to 65535.
  void (*sum_rows)(const uint8_t* const* rows, const uint16_t* weights, int taps, int16_t* to,
                   size_t n);
  // Weighted sums of numbers that are side by side, divided by 2^shift.
  void (*sum_places)(const int16_t* in, const PlaceGroups& groups, int shift, int16_t* to);
  // Pixels of 1, 3 or 4 channels. `excess`: null, or what is added to red, green and blue, in
  // units of 1/64. Reads and writes no pixel behind the n-th, but numbers up to kPlanePadding.
  void (*to_pixels)(const int16_t* y, const int16_t* cb, const int16_t* cr,
                    const int16_t* const* excess, uint8_t* to, int n, int channels);
};

// Those of this machine, the best ones first.
std::span<const PlaneKernels> plane_kernels();

}  // namespace penstock::image
