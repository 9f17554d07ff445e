#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace penstock::image {

// Pillow's filters of the same names.
enum class Filter : uint8_t { kNearest, kBox, kBilinear, kBicubic, kLanczos };

std::string_view name_of(Filter filter);
std::optional<Filter> filter_named(std::string_view name);

// A part of an axis, [begin, end) of `in` places, that is resized to `out` places, of which
// [first, first + count) are wanted.
struct AxisScale {
  int in = 0;
  double begin = 0, end = 0;
  int out = 0, first = 0, count = 0;
  Filter filter = Filter::kBilinear;
  bool antialias = true;  // false: the filter is not widened where the axis shrinks

  bool operator==(const AxisScale&) const = default;
  // Every wanted place is the input place at the same distance from `begin`.
  bool identity() const { return begin == static_cast<int>(begin) && end - begin == out; }
};

// The weights of the input places that each wanted output place is made of: Pillow's, bit for bit,
// as integers in units of 2^-22. One thread.
//
// Pillow, src/libImaging/Resample.c (precompute_coeffs, normalize_coeffs_8bpc), and for kNearest
// src/libImaging/Geometry.c (ImagingScaleAffine).
class AxisWeights {
 public:
  static constexpr int kBits = 22;

  // False: the scale is that of the last call, and nothing is computed. REQUIRED: 0 <= begin < end
  // <= in, the wanted places exist.
  bool reset(const AxisScale& scale);

  // Of the i-th wanted place: its first input place, their number, their weights.
  int begin(int i) const { return places_[static_cast<size_t>(i)].begin; }
  int taps(int i) const { return places_[static_cast<size_t>(i)].taps; }
  const int32_t* weights(int i) const { return weights_.data() + static_cast<size_t>(i * stride_); }
  // The input places that any wanted place needs: [first_input(), end_input()).
  int first_input() const { return first_input_; }
  int end_input() const { return end_input_; }
  int most_taps() const { return stride_; }

 private:
  struct Place {
    int begin, taps;
  };
  void find_nearest(const AxisScale& axis);
  void find_weights(const AxisScale& axis);

  AxisScale scale_;
  std::vector<Place> places_;
  std::vector<int32_t> weights_;
  std::vector<double> exact_;
  int stride_ = 0, first_input_ = 0, end_input_ = 0;
};

}  // namespace penstock::image
