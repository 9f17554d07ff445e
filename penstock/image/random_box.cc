#include "penstock/image/random_box.h"

#include <algorithm>
#include <cmath>

#include "penstock/image/portable_math.h"

namespace penstock::image {

double between(const Range& range, RandomStream& rng) {
  return range.least + (range.greatest - range.least) * rng.uniform();
}

CropBox random_box(int width, int height, int box_width, int box_height, RandomStream& rng) {
  const auto y = rng.below(static_cast<uint64_t>(height - box_height) + 1);
  const auto x = rng.below(static_cast<uint64_t>(width - box_width) + 1);
  return {static_cast<int>(x), static_cast<int>(y), box_width, box_height};
}

CropBox random_part(int width, int height, const Range& area, const Range& ratio,
                    RandomStream& rng) {
  constexpr int kTries = 10;
  const double whole = static_cast<double>(width) * height;
  const Range log_ratio{log_of(ratio.least), log_of(ratio.greatest)};
  for (int i = 0; i < kTries; ++i) {
    const double part = whole * between(area, rng);
    const double aspect = exp_of(between(log_ratio, rng));
    const double w = std::round(std::sqrt(part * aspect));
    const double h = std::round(std::sqrt(part / aspect));
    if (w < 1 || w > width || h < 1 || h > height) continue;
    return random_box(width, height, static_cast<int>(w), static_cast<int>(h), rng);
  }
  const double aspect = static_cast<double>(width) / height;
  int w = width, h = height;
  if (aspect < ratio.least) {
    h = std::clamp(static_cast<int>(std::round(width / ratio.least)), 1, height);
  } else if (aspect > ratio.greatest) {
    w = std::clamp(static_cast<int>(std::round(height * ratio.greatest)), 1, width);
  }
  return {(width - w) / 2, (height - h) / 2, w, h};
}

std::optional<CropBox> box_to_erase(int width, int height, const Range& area, const Range& ratio,
                                    RandomStream& rng) {
  constexpr int kTries = 10;
  const double whole = static_cast<double>(width) * height;
  const Range log_ratio{log_of(ratio.least), log_of(ratio.greatest)};
  for (int i = 0; i < kTries; ++i) {
    const double part = whole * between(area, rng);
    const double aspect = exp_of(between(log_ratio, rng));
    const double h = std::round(std::sqrt(part * aspect));
    const double w = std::round(std::sqrt(part / aspect));
    if (w >= width || h >= height) continue;
    return random_box(width, height, static_cast<int>(w), static_cast<int>(h), rng);
  }
  return std::nullopt;
}

void erase(Image& image, const CropBox& box, double value) {
  const int channels = image.view().channels;
  const auto count = static_cast<size_t>(box.width) * static_cast<size_t>(channels);
  for (int y = box.y; y < box.y + box.height; ++y) {
    uint8_t* to = image.row(y) + box.x * image.view().pixel_bytes();
    if (image.view().value_bytes == 1) {
      std::fill_n(to, count, static_cast<uint8_t>(std::clamp(std::round(value), 0.0, 255.0)));
    } else {
      std::fill_n(reinterpret_cast<float*>(to), count, static_cast<float>(value));
    }
  }
}

namespace {

double above_zero(RandomStream& rng) { return 1 - rng.uniform(); }

double normal(RandomStream& rng) {
  const double radius = std::sqrt(-2 * log_of(above_zero(rng)));
  return radius * cosine_of_degrees(360 * rng.uniform());
}

// The logarithm of a gamma variable, which itself may be too small for a double.
double log_gamma_variable(double alpha, RandomStream& rng) {
  const double more = alpha < 1 ? log_of(above_zero(rng)) / alpha : 0;
  const double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal(rng), t = 1 + c * x;
    if (t <= 0) continue;
    const double v = t * t * t;
    if (log_of(above_zero(rng)) < 0.5 * x * x + d - d * v + d * log_of(v)) {
      return log_of(d * v) + more;
    }
  }
}

}  // namespace

double random_proportion(double alpha, RandomStream& rng) {
  const double one = log_gamma_variable(alpha, rng), other = log_gamma_variable(alpha, rng);
  return 1 / (1 + exp_of(std::clamp(other - one, -700.0, 700.0)));
}

void mix(const uint8_t* one, const uint8_t* other, double share, uint8_t* to, size_t n) {
  const auto weight = static_cast<int32_t>(std::round(share * 65536));
  for (size_t i = 0; i < n; ++i) {
    to[i] = static_cast<uint8_t>((one[i] * weight + other[i] * (65536 - weight) + 32768) >> 16);
  }
}

void mix(const float* one, const float* other, double share, float* to, size_t n) {
  const auto here = static_cast<float>(share), there = static_cast<float>(1 - share);
  for (size_t i = 0; i < n; ++i) to[i] = one[i] * here + other[i] * there;
}

CropBox box_to_mix(int width, int height, double share, RandomStream& rng) {
  const auto x = static_cast<int>(rng.below(static_cast<uint64_t>(width)));
  const auto y = static_cast<int>(rng.below(static_cast<uint64_t>(height)));
  const double half = 0.5 * std::sqrt(1 - share);
  const int half_width = static_cast<int>(half * width);
  const int half_height = static_cast<int>(half * height);
  const int left = std::max(x - half_width, 0), right = std::min(x + half_width, width);
  const int top = std::max(y - half_height, 0), bottom = std::min(y + half_height, height);
  return {left, top, right - left, bottom - top};
}

}  // namespace penstock::image
