#include "penstock/image/random_crop.h"

#include <algorithm>
#include <cmath>

namespace penstock::image {
namespace {

// The logarithm and exponential of C libraries differ in the last bit; sums, products and
// quotients do not.
double log_of(double x) {
  int power;
  const double z = std::frexp(x, &power);  // x = z 2^power, z in [0.5, 1)
  const double t = (z - 1) / (z + 1);
  double sum = 0, term = t;
  for (int k = 1; k < 60; k += 2) {
    sum += term / k;
    term *= t * t;
  }
  return 2 * sum + power * M_LN2;
}

double exp_of(double x) {
  const double power = std::floor(x / M_LN2 + 0.5);
  const double rest = x - power * M_LN2;
  double sum = 1, term = 1;
  for (int k = 1; k < 24; ++k) {
    term *= rest / k;
    sum += term;
  }
  return std::ldexp(sum, static_cast<int>(power));
}

double between(const Range& range, RandomStream& rng) {
  return range.least + (range.greatest - range.least) * rng.uniform();
}

}  // namespace

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

}  // namespace penstock::image
