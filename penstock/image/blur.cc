#include "penstock/image/blur.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "penstock/image/portable_math.h"

namespace penstock::image {
namespace {

constexpr int kWeightBits = 14;
constexpr int kKept = 6;  // binary places of values between the two directions

// Multiples of 2^-14 whose sum is 1.
std::vector<int32_t> gaussian(int size, double sigma) {
  const int half = size / 2;
  std::vector<double> exact;
  double sum = 0;
  for (int i = -half; i <= half; ++i) {
    exact.push_back(exp_of(std::max(-700.0, -0.5 * (i / sigma) * (i / sigma))));
    sum += exact.back();
  }
  std::vector<int32_t> weights;
  int32_t rest = 1 << kWeightBits;
  for (double each : exact) {
    weights.push_back(static_cast<int32_t>(std::floor(each / sum * (1 << kWeightBits) + 0.5)));
    rest -= weights.back();
  }
  weights[static_cast<size_t>(half)] += rest;
  return weights;
}

// The place in an image that is mirrored at its first and last pixel.
int mirrored_place(int place, int size) {
  if (size == 1) return 0;
  const int period = 2 * size - 2;
  place = (place % period + period) % period;
  return place < size ? place : period - place;
}

#define PENSTOCK_BLUR_PART __attribute__((always_inline)) inline

template <class T>
PENSTOCK_BLUR_PART void add_weighted(const T* __restrict in, int32_t weight,
                                     int32_t* __restrict sums, size_t n) {
  for (size_t i = 0; i < n; ++i) sums[i] += in[i] * weight;
}

template <int kShift, class T>
PENSTOCK_BLUR_PART void shift_down(const int32_t* __restrict sums, T* __restrict to, size_t n) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<T>(sums[i] >> kShift);
}

// One row: of n values, the weighted sum of inputs that are `step` values apart, or in `rows`.
PENSTOCK_BLUR_PART void blur_row_across(const uint8_t* in, size_t step, const int32_t* weights,
                                        int taps, int32_t* sums, uint16_t* to, size_t n) {
  constexpr int kShift = kWeightBits - kKept;
  std::fill_n(sums, n, 1 << (kShift - 1));
  for (int k = 0; k < taps; ++k, in += step) add_weighted(in, weights[k], sums, n);
  shift_down<kShift>(sums, to, n);
}
PENSTOCK_BLUR_PART void blur_row_down(const uint16_t* const* rows, const int32_t* weights, int taps,
                                      int32_t* sums, uint8_t* to, size_t n) {
  constexpr int kShift = kWeightBits + kKept;
  std::fill_n(sums, n, 1 << (kShift - 1));
  for (int k = 0; k < taps; ++k) add_weighted(rows[k], weights[k], sums, n);
  shift_down<kShift>(sums, to, n);
}

struct BlurRows {
  void (*across)(const uint8_t*, size_t, const int32_t*, int, int32_t*, uint16_t*, size_t);
  void (*down)(const uint16_t* const*, const int32_t*, int, int32_t*, uint8_t*, size_t);
};

// All that is compiled for one instruction set; the integers are the same in all of them.
#define PENSTOCK_BLUR_SET(name, attribute)                                                       \
  attribute void across_##name(const uint8_t* in, size_t step, const int32_t* weights, int taps, \
                               int32_t* sums, uint16_t* to, size_t n) {                          \
    blur_row_across(in, step, weights, taps, sums, to, n);                                       \
  }                                                                                              \
  attribute void down_##name(const uint16_t* const* rows, const int32_t* weights, int taps,      \
                             int32_t* sums, uint8_t* to, size_t n) {                             \
    blur_row_down(rows, weights, taps, sums, to, n);                                             \
  }
PENSTOCK_BLUR_SET(plain, )
#if defined(__x86_64__)
PENSTOCK_BLUR_SET(avx2, __attribute__((target("avx2"))))
BlurRows best_blur() {
  return __builtin_cpu_supports("avx2") ? BlurRows{across_avx2, down_avx2}
                                        : BlurRows{across_plain, down_plain};
}
#else
BlurRows best_blur() { return {across_plain, down_plain}; }
#endif

}  // namespace

void gaussian_blur(Image& image, int size, double sigma) {
  static const BlurRows blur = best_blur();
  const ImageView& view = image.view();
  const std::vector<int32_t> weights = gaussian(size, sigma);
  const int half = size / 2;
  const auto channels = static_cast<size_t>(view.channels);
  const size_t n = view.stride;
  std::vector<uint8_t> wide((static_cast<size_t>(view.width) + 2 * static_cast<size_t>(half)) *
                            channels);
  std::vector<int32_t> sums(n);
  std::vector<uint16_t> across(n * static_cast<size_t>(view.height));
  for (int y = 0; y < view.height; ++y) {
    const uint8_t* row = image.row(y);
    auto mirror = [&](int x) {
      const auto place = static_cast<size_t>(mirrored_place(x, view.width));
      std::memcpy(wide.data() + static_cast<size_t>(x + half) * channels, row + place * channels,
                  channels);
    };
    for (int x = 1; x <= half; ++x) {
      mirror(-x);
      mirror(view.width - 1 + x);
    }
    std::memcpy(wide.data() + static_cast<size_t>(half) * channels, row, n);
    blur.across(wide.data(), channels, weights.data(), size, sums.data(),
                across.data() + static_cast<size_t>(y) * n, n);
  }
  std::vector<const uint16_t*> rows(static_cast<size_t>(size));
  for (int y = 0; y < view.height; ++y) {
    for (int k = 0; k < size; ++k) {
      const int place = mirrored_place(y + k - half, view.height);
      rows[static_cast<size_t>(k)] = across.data() + static_cast<size_t>(place) * n;
    }
    blur.down(rows.data(), weights.data(), size, sums.data(), image.row(y), n);
  }
}

}  // namespace penstock::image
