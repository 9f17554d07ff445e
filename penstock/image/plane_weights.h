#pragma once

#include <cstdint>
#include <vector>

#include "penstock/image/resize_filter.h"

namespace penstock::image {

// The samples of a plane along one axis of an image.
struct SampleAxis {
  int count = 0;        // of samples
  int pixels = 1;       // that a sample covers: 1 or 2
  bool smooth = false;  // as PlaneLayout::smooth

  bool operator==(const SampleAxis&) const = default;
};

// The weights of a plane's samples for each wanted place of a resize: those of its pixels, composed
// with the interpolation between samples. One thread.
class PlaneWeights {
 public:
  // Composes them anew. `axis` is of the pixels from `origin` on, and has `count` wanted places.
  // `total`: what the weights of a place add up to. `mirrored`: the places in the opposite order.
  void compose(const AxisWeights& axis, int count, int origin, const SampleAxis& samples, int total,
               bool mirrored);

  // Of the i-th wanted place: its first sample, the number of its samples, their weights.
  int begin(int i) const { return places_[static_cast<size_t>(i)].begin; }
  int taps(int i) const { return places_[static_cast<size_t>(i)].taps; }
  const int32_t* weights(int i) const { return weights_.data() + static_cast<size_t>(i * stride_); }
  // The samples that any wanted place needs: [first(), end()).
  int first() const { return first_; }
  int end() const { return end_; }
  int most_taps() const { return most_taps_; }

 private:
  struct Place {
    int begin, taps;
  };
  std::vector<Place> places_;
  std::vector<int32_t> weights_;
  int stride_ = 0, first_ = 0, end_ = 0, most_taps_ = 0;
};

}  // namespace penstock::image
