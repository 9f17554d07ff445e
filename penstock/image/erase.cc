#include "penstock/image/erase.h"

#include <algorithm>
#include <cmath>

#include "penstock/image/portable_math.h"

namespace penstock::image {

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

}  // namespace penstock::image
