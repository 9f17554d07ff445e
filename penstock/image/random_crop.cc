#include "penstock/image/random_crop.h"

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

}  // namespace penstock::image
