#include "penstock/image/mix.h"

#include <algorithm>
#include <cmath>

#include "penstock/image/portable_math.h"

namespace penstock::image {
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
