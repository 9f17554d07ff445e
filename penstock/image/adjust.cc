#include "penstock/image/adjust.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "penstock/image/pixels.h"
#include "penstock/image/portable_math.h"

namespace penstock::image {

namespace {

using Table = std::array<uint8_t, 256>;

int colours_of(const Image& image) { return (image.view().channels - 1) / 2 * 2 + 1; }

size_t pixels_of(const Image& image) {
  const ImageView& view = image.view();
  return static_cast<size_t>(view.width) * static_cast<size_t>(view.height);
}

// Of two values, as Pillow mixes them: beyond 0 and 1 with limits, without fractions.
uint8_t mixed(uint8_t from, uint8_t to, float factor) {
  const float value = static_cast<float>(from) + factor * static_cast<float>(to - from);
  return static_cast<uint8_t>(std::clamp(value, 0.0F, 255.0F));
}

// A table for each colour.
void look_up(Image& image, const Table* tables) {
  const auto channels = static_cast<size_t>(image.view().channels);
  const auto colours = static_cast<size_t>(colours_of(image));
  uint8_t* at = image.row(0);
  for (size_t i = pixels_of(image); i > 0; --i, at += channels) {
    for (size_t c = 0; c < colours; ++c) at[c] = tables[c][at[c]];
  }
}

template <class F>
void map_values(Image& image, F value) {
  std::array<Table, 3> tables;
  for (size_t i = 0; i < 256; ++i) tables[0][i] = value(static_cast<int>(i));
  tables[2] = tables[1] = tables[0];
  look_up(image, tables.data());
}

using Histogram = std::array<uint32_t, 256>;

// A table of each colour, made of how often it has each value.
template <class F>
void map_channels(Image& image, F make) {
  const auto channels = static_cast<size_t>(image.view().channels);
  const auto colours = static_cast<size_t>(colours_of(image));
  std::array<Histogram, 3> counts{};
  const uint8_t* at = image.row(0);
  for (size_t i = pixels_of(image); i > 0; --i, at += channels) {
    for (size_t c = 0; c < colours; ++c) ++counts[c][at[c]];
  }
  std::array<Table, 3> tables;
  for (size_t c = 0; c < colours; ++c) make(counts[c], tables[c]);
  look_up(image, tables.data());
}

float clamped_part(float k) { return std::clamp(std::min(k, 4 - k), 0.0F, 1.0F); }

// Where the hue is on a circle of 6.
float hue_of(float r, float g, float b, float most, float chroma) {
  if (chroma == 0) return 0;
  if (most == r) return (g - b) / chroma;
  return most == g ? (b - r) / chroma + 2 : (r - g) / chroma + 4;
}

}  // namespace

void adjust_brightness(Image& image, double factor) {
  map_values(image, [f = static_cast<float>(factor)](int value) {
    return mixed(0, static_cast<uint8_t>(value), f);
  });
}

void adjust_contrast(Image& image, double factor) {
  const int channels = image.view().channels;
  const bool grey = channels < 3;
  const uint8_t* at = image.row(0);
  uint64_t sum = 0;
  const size_t pixels = pixels_of(image);
  for (size_t i = 0; i < pixels; ++i, at += channels) sum += grey ? at[0] : luma(at);
  const auto mean = static_cast<uint8_t>((2 * sum + pixels) / (2 * pixels));
  map_values(image, [mean, f = static_cast<float>(factor)](int value) {
    return mixed(mean, static_cast<uint8_t>(value), f);
  });
}

void adjust_saturation(Image& image, double factor) {
  const int channels = image.view().channels;
  if (channels < 3) return;
  const auto f = static_cast<float>(factor);
  uint8_t* at = image.row(0);
  for (size_t i = pixels_of(image); i > 0; --i, at += channels) {
    const uint8_t grey = luma(at);
    for (int c = 0; c < 3; ++c) at[c] = mixed(grey, at[c], f);
  }
}

void adjust_sharpness(Image& image, double factor) {
  const ImageView& view = image.view();
  if (view.width < 3 || view.height < 3) return;
  const int channels = view.channels, colours = colours_of(image);
  const auto f = static_cast<float>(factor);
  // Rows as they were: the one before this one, this one, the next one.
  std::vector<uint8_t> rows(3 * view.stride);
  auto kept = [&](int y) { return rows.data() + static_cast<size_t>(y % 3) * view.stride; };
  std::memcpy(kept(0), image.row(0), view.stride);
  std::memcpy(kept(1), image.row(1), view.stride);
  for (int y = 1; y + 1 < view.height; ++y) {
    std::memcpy(kept(y + 1), image.row(y + 1), view.stride);
    const uint8_t *above = kept(y - 1), *here = kept(y), *below = kept(y + 1);
    uint8_t* to = image.row(y);
    for (int x = 1; x + 1 < view.width; ++x) {
      for (int c = 0; c < colours; ++c) {
        const int i = x * channels + c, left = i - channels, right = i + channels;
        const int sum = above[left] + above[i] + above[right] + here[left] + 5 * here[i] +
                        here[right] + below[left] + below[i] + below[right];
        // Pillow's SMOOTH, of a 13th each, rounded.
        to[i] = mixed(static_cast<uint8_t>((2 * sum + 13) / 26), here[i], f);
      }
    }
  }
}

void adjust_hue(Image& image, double turn) {
  const int channels = image.view().channels;
  if (channels < 3) return;
  const auto shift = static_cast<float>((turn - std::floor(turn)) * 6);
  uint8_t* at = image.row(0);
  for (size_t i = pixels_of(image); i > 0; --i, at += channels) {
    const float r = at[0], g = at[1], b = at[2];
    const float most = std::max({r, g, b}), chroma = most - std::min({r, g, b});
    const float hue = hue_of(r, g, b, most, chroma) + shift;
    constexpr float kPlaces[] = {5, 3, 1};  // of red, green and blue
    for (int c = 0; c < 3; ++c) {
      float k = kPlaces[c] + hue;  // 0 to 17
      while (k >= 6) k -= 6;
      at[c] = static_cast<uint8_t>(most - chroma * clamped_part(k) + 0.5F);
    }
  }
}

void adjust_gamma(Image& image, double gamma) {
  map_values(image, [gamma](int value) {
    const double x = value == 0 ? 0 : exp_of(gamma * log_of(value / 255.0));
    return static_cast<uint8_t>(std::clamp((255 + 1 - 1e-3) * (gamma == 0 ? 1 : x), 0.0, 255.0));
  });
}

void shift_channels(Image& image, double by) {
  const auto channels = static_cast<size_t>(image.view().channels);
  const auto colours = static_cast<size_t>(colours_of(image));
  uint8_t least = 255, greatest = 0;
  const uint8_t* at = image.row(0);
  for (size_t i = pixels_of(image); i > 0; --i, at += channels) {
    for (size_t c = 0; c < colours; ++c) {
      least = std::min(least, at[c]);
      greatest = std::max(greatest, at[c]);
    }
  }
  map_values(image, [=](int value) {
    const double moved = std::floor(value + by + 0.5);
    return static_cast<uint8_t>(std::max<double>(least, std::min<double>(greatest, moved)));
  });
}

void invert(Image& image) {
  map_values(image, [](int value) { return static_cast<uint8_t>(255 - value); });
}

void posterize(Image& image, int bits) {
  const int mask = 256 - (1 << (8 - bits));
  map_values(image, [mask](int value) { return static_cast<uint8_t>(value & mask); });
}

void solarize(Image& image, int threshold) {
  map_values(image, [threshold](int value) {
    return static_cast<uint8_t>(value < threshold ? value : 255 - value);
  });
}

void autocontrast(Image& image) {
  map_channels(image, [](const Histogram& counts, Table& table) {
    int least = 0, most = 255;
    while (least < 255 && counts[static_cast<size_t>(least)] == 0) ++least;
    while (most > 0 && counts[static_cast<size_t>(most)] == 0) --most;
    const double scale = most > least ? 255.0 / (most - least) : 1;
    const double offset = most > least ? -least * scale : 0;
    for (int i = 0; i < 256; ++i) {
      const int value = static_cast<int>(i * scale + offset);
      table[static_cast<size_t>(i)] = static_cast<uint8_t>(std::clamp(value, 0, 255));
    }
  });
}

void equalize(Image& image) {
  map_channels(image, [](const Histogram& counts, Table& table) {
    uint64_t all = 0;
    uint32_t last = 0;
    int values = 0;
    for (uint32_t count : counts) {
      if (count == 0) continue;
      all += count;
      last = count;
      ++values;
    }
    const uint64_t step = values <= 1 ? 0 : (all - last) / 255;
    uint64_t sum = step / 2;
    for (size_t i = 0; i < 256; ++i) {
      table[i] = static_cast<uint8_t>(step == 0 ? i : std::min<uint64_t>(sum / step, 255));
      sum += counts[i];
    }
  });
}

Jitter draw_jitter(const JitterRanges& ranges, RandomStream& rng) {
  Jitter jitter{{}, {0, 1, 2, 3}};
  for (size_t i = 3; i > 0; --i) std::swap(jitter.order[i], jitter.order[rng.below(i + 1)]);
  const Range* const all[] = {&ranges.brightness, &ranges.contrast, &ranges.saturation,
                              &ranges.hue};
  for (size_t i = 0; i < 4; ++i) jitter.factors[i] = between(*all[i], rng);
  return jitter;
}

void color_jitter(Image& image, const Jitter& jitter) {
  const auto& [brightness, contrast, saturation, hue] = jitter.factors;
  for (int each : jitter.order) {
    if (each == 0 && brightness != 1) adjust_brightness(image, brightness);
    if (each == 1 && contrast != 1) adjust_contrast(image, contrast);
    if (each == 2 && saturation != 1) adjust_saturation(image, saturation);
    if (each == 3 && hue != 0) adjust_hue(image, hue);
  }
}

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
