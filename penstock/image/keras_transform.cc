#include "penstock/image/keras_transform.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "penstock/image/portable_math.h"

namespace penstock::image {
namespace {

using Matrix = std::array<std::array<double, 3>, 3>;

Matrix product(const Matrix& left, const Matrix& right) {
  Matrix made{};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      for (size_t k = 0; k < 3; ++k) made[i][j] += left[i][k] * right[k][j];
    }
  }
  return made;
}

double shift(const KerasShift& range, int size, RandomStream& rng) {
  double pixels = 0;
  if (!range.choices.empty()) {
    const double place = rng.uniform() * static_cast<double>(range.choices.size());
    pixels = range.choices[static_cast<size_t>(place)] * (rng.uniform() < 0.5 ? -1 : 1);
  } else if (range.most != 0) {
    pixels = between({-range.most, range.most}, rng);
  }
  return range.relative ? pixels * size : pixels;
}

// Keras' apply_affine_transform(): turned, shifted, sheared, zoomed around the centre. Keras
// computes it for (y, x) and then swaps the axes, so tx moves along x, and the centre of an image
// that is not square is off. This does the same.
Map keras_map(const KerasTransform& t, int width, int height) {
  const double cosine = cosine_of_degrees(t.theta), sine = sine_of_degrees(t.theta);
  Matrix m = {{{cosine, -sine, 0}, {sine, cosine, 0}, {0, 0, 1}}};
  m = product(m, {{{1, 0, t.tx}, {0, 1, t.ty}, {0, 0, 1}}});
  m = product(m,
              {{{1, -sine_of_degrees(t.shear), 0}, {0, cosine_of_degrees(t.shear), 0}, {0, 0, 1}}});
  m = product(m, {{{t.zx, 0, 0}, {0, t.zy, 0}, {0, 0, 1}}});
  const double x = height / 2.0 - 0.5, y = width / 2.0 - 0.5;
  m = product({{{1, 0, x}, {0, 1, y}, {0, 0, 1}}}, m);
  m = product(m, {{{1, 0, -x}, {0, 1, -y}, {0, 0, 1}}});
  Map map{m[0][0], m[0][1], m[0][2], m[1][0], m[1][1], m[1][2]};
  if (t.flip_horizontal) {
    map.c += map.a * (width - 1);
    map.f += map.d * (width - 1);
    map.a = -map.a;
    map.d = -map.d;
  }
  if (t.flip_vertical) {
    map.c += map.b * (height - 1);
    map.f += map.e * (height - 1);
    map.b = -map.b;
    map.e = -map.e;
  }
  return map;
}

// Keras' apply_brightness_shift(): by Pillow, of 8-bit pixels; alpha stays.
void brighten(double factor, const KerasLayout& layout, float* values) {
  const auto [least, greatest] = std::minmax_element(values, values + layout.values());
  const float low = *least, high = *greatest;
  const bool scaled = low < 0 || high > 255;
  const size_t count = layout.values(), channels = static_cast<size_t>(layout.channels);
  const float range = high - low;
  for (size_t i = 0; i < count; ++i) {
    float value = values[i];
    if (scaled) value = range == 0 ? 0 : (value - low) / range * 255;
    const size_t channel = layout.channels_first ? i / layout.pixels() : i % channels;
    const bool alpha = channels == 4 && channel == 3;
    const double pixel = std::floor(static_cast<double>(value));
    const double bright = alpha ? pixel : std::clamp(std::floor(pixel * factor), 0.0, 255.0);
    values[i] = static_cast<float>(bright);
    if (scaled) values[i] = values[i] / 255 * range + low;
  }
}

}  // namespace

KerasTransform random_transform(const KerasRanges& ranges, int height, int width,
                                RandomStream& rng) {
  const auto both = [&](double most) { return most == 0 ? 0 : between({-most, most}, rng); };
  KerasTransform made;
  made.theta = both(ranges.rotation);
  made.tx = shift(ranges.height, height, rng);
  made.ty = shift(ranges.width, width, rng);
  made.shear = both(ranges.shear);
  if (ranges.zoom.least != 1 || ranges.zoom.greatest != 1) {
    made.zx = between(ranges.zoom, rng);
    made.zy = between(ranges.zoom, rng);
  }
  made.flip_horizontal = ranges.horizontal_flip && rng.uniform() < 0.5;
  made.flip_vertical = ranges.vertical_flip && rng.uniform() < 0.5;
  if (ranges.channel_shift != 0) made.channel_shift = both(ranges.channel_shift);
  if (ranges.brightness) made.brightness = between(*ranges.brightness, rng);
  return made;
}

void KerasTransformer::apply(const KerasTransform& transform, const KerasLayout& layout,
                             const uint8_t* in, bool floats, const WarpOptions& options,
                             float* to) {
  const Map map = keras_map(transform, layout.width, layout.height);
  ImageView plane{in, layout.width,  layout.height, layout.channels_first ? 1 : layout.channels,
                  0,  floats ? 4 : 1};
  plane.stride = static_cast<size_t>(plane.width) * static_cast<size_t>(plane.pixel_bytes());
  const size_t values = plane.stride / static_cast<size_t>(plane.value_bytes);  // of a row
  row_.resize(values);
  float* at = to;
  for (int left = layout.channels_first ? layout.channels : 1; left > 0; --left) {
    warper_.begin(plane, map, options);
    for (int y = 0; y < layout.height; ++y, at += values) {
      uint8_t* row = floats ? reinterpret_cast<uint8_t*>(at) : row_.data();
      warper_.row(y, 0, layout.width, row);
      if (!floats) std::copy_n(row, values, at);
    }
    plane.data += plane.stride * static_cast<size_t>(layout.height);
  }
  if (transform.channel_shift) {
    const auto [least, greatest] = std::minmax_element(to, to + layout.values());
    const float low = *least, high = *greatest;
    const auto by = static_cast<float>(*transform.channel_shift);
    for (size_t i = 0; i < layout.values(); ++i) to[i] = std::clamp(to[i] + by, low, high);
  }
  if (transform.brightness) brighten(*transform.brightness, layout, to);
}

void standardize(const KerasStandardization& how, const KerasLayout& layout, float* values) {
  const size_t count = layout.values(), channels = static_cast<size_t>(layout.channels);
  double factor = how.rescale, mean = 0;
  if (how.center || how.std) {
    double sum = 0, squares = 0;
    for (size_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]);
    const double middle = sum / static_cast<double>(count);
    for (size_t i = 0; i < count; ++i) {
      squares +=
          (static_cast<double>(values[i]) - middle) * (static_cast<double>(values[i]) - middle);
    }
    if (how.center) mean = middle;
    if (how.std) {
      const double deviation = std::sqrt(squares / static_cast<double>(count));
      factor /= deviation * std::abs(how.rescale) + 1e-6;
    }
  }
  for (size_t c = 0; c < channels; ++c) {
    double scale = factor, offset = -mean * factor;
    if (!how.feature_mean.empty()) offset -= static_cast<double>(how.feature_mean[c]);
    if (!how.feature_std.empty()) {
      const double deviation = static_cast<double>(how.feature_std[c]) + 1e-6;
      scale /= deviation;
      offset /= deviation;
    }
    const auto times = static_cast<float>(scale), plus = static_cast<float>(offset);
    float* at = layout.channels_first ? values + c * layout.pixels() : values + c;
    const size_t step = layout.channels_first ? 1 : channels;
    for (size_t i = 0; i < layout.pixels(); ++i, at += step) *at = *at * times + plus;
  }
}

}  // namespace penstock::image
