#include "penstock/image/warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace penstock::image {
namespace {

constexpr int kPlaces = 24;  // binary places of coordinates
constexpr int64_t kPixel = int64_t{1} << kPlaces;
constexpr int kWeightBits = 14;
constexpr int32_t kWhole = 1 << kWeightBits;
constexpr int kKept = 6;  // binary places of values between the two directions

constexpr std::pair<std::string_view, Sampling> kSamplings[] = {{"nearest", Sampling::kNearest},
                                                                {"bilinear", Sampling::kBilinear}};
constexpr std::pair<std::string_view, Beyond> kBeyonds[] = {{"nearest", Beyond::kNearest},
                                                            {"constant", Beyond::kConstant},
                                                            {"reflect", Beyond::kReflect},
                                                            {"wrap", Beyond::kWrap}};

int64_t fixed(double pixels) { return std::llround(pixels * static_cast<double>(kPixel)); }

int32_t weight_of(int64_t at) {
  return static_cast<int32_t>(at >> (kPlaces - kWeightBits) & (kWhole - 1));
}

// Two neighbours along one axis, and the weight of the second.
struct Neighbours {
  int first, second;
  int32_t weight;
};

int reflected(int64_t place, int size) {
  const int64_t period = int64_t{2} * size;
  place %= period;
  if (place < 0) place += period;
  return static_cast<int>(place < size ? place : period - 1 - place);
}

// False: the constant. `rounding`: coordinates may be off by so much, and a pixel on the border is
// inside.
bool find_neighbours(int64_t at, int size, const WarpSpec& spec, int64_t rounding,
                     Neighbours& found) {
  const int64_t last = (size - 1) * kPixel;
  if (at < 0 || at > last) {
    switch (spec.beyond) {
      case Beyond::kConstant:
        if (at < -rounding || at > last + rounding) return false;
        [[fallthrough]];
      case Beyond::kNearest:
        at = std::clamp(at, int64_t{0}, last);
        break;
      case Beyond::kReflect:
        break;
      case Beyond::kWrap:
        if (last == 0) {
          at = 0;
        } else if (at < 0) {
          at += last * (-at / last + 1);
        } else {
          at %= last;
        }
    }
  }
  if (spec.sampling == Sampling::kNearest) at = (at + kPixel / 2) & ~(kPixel - 1);
  const int64_t first = at >> kPlaces;
  if (spec.beyond == Beyond::kReflect) {
    found = {reflected(first, size), reflected(first + 1, size), weight_of(at)};
  } else {
    found = {static_cast<int>(first), static_cast<int>(std::min<int64_t>(first + 1, size - 1)),
             weight_of(at)};
  }
  return true;
}

// Of four neighbours: first vertically, then horizontally, rounded each time.
uint8_t blended(int top, int top_right, int bottom, int bottom_right, int32_t wx, int32_t wy) {
  constexpr int kDown = kWeightBits - kKept, kAcross = kWeightBits + kKept;
  const int32_t left = (top * (kWhole - wy) + bottom * wy + (1 << (kDown - 1))) >> kDown;
  const int32_t right =
      (top_right * (kWhole - wy) + bottom_right * wy + (1 << (kDown - 1))) >> kDown;
  return static_cast<uint8_t>((left * (kWhole - wx) + right * wx + (1 << (kAcross - 1))) >>
                              kAcross);
}

// The bytes that `blend_inside` reads of a row, from a pixel on, and that it writes.
template <int kChannels>
constexpr int kRead = kChannels == 1 ? 2 : 8;
template <int kChannels>
constexpr int kWritten = kChannels == 1 ? 1 : 4;

#if defined(__SSE2__)
template <int kChannels>
void blend_inside(const uint8_t* top, const uint8_t* bottom, int32_t wx, int32_t wy, uint8_t* to) {
  if constexpr (kChannels == 1) {
    to[0] = blended(top[0], top[1], bottom[0], bottom[1], wx, wy);
    return;
  }
  constexpr int kDown = kWeightBits - kKept, kAcross = kWeightBits + kKept;
  const __m128i zero = _mm_setzero_si128();
  const __m128i both = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(top)),
                                         _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bottom)));
  const __m128i down = _mm_set1_epi32(wy << 16 | (kWhole - wy));
  const __m128i half = _mm_set1_epi32(1 << (kDown - 1));
  const __m128i low = _mm_madd_epi16(_mm_unpacklo_epi8(both, zero), down);
  const __m128i high = _mm_madd_epi16(_mm_unpackhi_epi8(both, zero), down);
  const __m128i pair = _mm_packs_epi32(_mm_srai_epi32(_mm_add_epi32(low, half), kDown),
                                       _mm_srai_epi32(_mm_add_epi32(high, half), kDown));
  const __m128i across = _mm_set1_epi32(wx << 16 | (kWhole - wx));
  const __m128i sum =
      _mm_madd_epi16(_mm_unpacklo_epi16(pair, _mm_srli_si128(pair, 2 * kChannels)), across);
  const __m128i values =
      _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(1 << (kAcross - 1))), kAcross);
  const __m128i words = _mm_packs_epi32(values, values);
  const int32_t pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
  std::memcpy(to, &pixel, 4);
}
#else
template <int kChannels>
void blend_inside(const uint8_t* top, const uint8_t* bottom, int32_t wx, int32_t wy, uint8_t* to) {
  for (int c = 0; c < kChannels; ++c) {
    to[c] = blended(top[c], top[kChannels + c], bottom[c], bottom[kChannels + c], wx, wy);
  }
}
#endif

uint8_t value_of(double value) {
  return static_cast<uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
}

// A pixel anywhere.
void sample(const ImageView& in, const WarpSpec& spec, int64_t x, int64_t y, uint8_t* to) {
  Neighbours across, down;
  const int64_t rounding = in.width / 2 + 1;
  if (!find_neighbours(x, in.width, spec, rounding, across) ||
      !find_neighbours(y, in.height, spec, rounding, down)) {
    std::memset(to, value_of(spec.value), static_cast<size_t>(in.channels));
    return;
  }
  const uint8_t* const top = in.row(down.first);
  const uint8_t* const bottom = in.row(down.second);
  const int left = across.first * in.channels, right = across.second * in.channels;
  for (int c = 0; c < in.channels; ++c) {
    to[c] = blended(top[left + c], top[right + c], bottom[left + c], bottom[right + c],
                    across.weight, down.weight);
  }
}

// Pixels of which most lie inside the image.
template <int kChannels>
void sample_row(const ImageView& in, const WarpSpec& spec, const int64_t* xs, const int64_t* ys,
                int count, uint8_t* to) {
  // Coordinates below these have all that blend_inside reads in their rows.
  const int columns = (in.width * kChannels - kRead<kChannels>) / kChannels + 1;
  const bool wide = in.width * kChannels >= kRead<kChannels>;
  const uint64_t most_x = wide ? static_cast<uint64_t>(columns) << kPlaces : 0;
  const uint64_t most_y = static_cast<uint64_t>(in.height - 1) << kPlaces;
  const int most = (count * kChannels - kWritten<kChannels>) / kChannels;
  const bool nearest = spec.sampling == Sampling::kNearest;
  for (int i = 0; i < count; ++i, to += kChannels) {
    const auto x = static_cast<uint64_t>(xs[i]), y = static_cast<uint64_t>(ys[i]);
    if (x < most_x && y < most_y && i <= most && !nearest) {
      const uint8_t* top = in.row(static_cast<int>(y >> kPlaces)) + (x >> kPlaces) * kChannels;
      blend_inside<kChannels>(top, top + in.stride, weight_of(xs[i]), weight_of(ys[i]), to);
    } else {
      sample(in, spec, xs[i], ys[i], to);
    }
  }
}

template <class T>
void warp_values(const ArrayView& in, const WarpSpec& spec, float* to) {
  const auto* const data = static_cast<const T*>(in.data);
  const int64_t step_x = fixed(spec.map.a), step_y = fixed(spec.map.d);
  const int64_t rounding = in.width / 2 + 1;
  const auto channels = static_cast<size_t>(in.channels);
  const auto part = [](int32_t weight) {
    return static_cast<float>(weight) / static_cast<float>(kWhole);
  };
  for (int y = 0; y < in.height; ++y) {
    int64_t at_x = fixed(spec.map.b * y + spec.map.c), at_y = fixed(spec.map.e * y + spec.map.f);
    float* out = to + static_cast<size_t>(y) * in.row;
    for (int x = 0; x < in.width; ++x, at_x += step_x, at_y += step_y, out += in.pixel) {
      Neighbours across, down;
      if (!find_neighbours(at_x, in.width, spec, rounding, across) ||
          !find_neighbours(at_y, in.height, spec, rounding, down)) {
        for (size_t c = 0; c < channels; ++c) {
          out[c * in.channel] = static_cast<float>(spec.value);
        }
        continue;
      }
      const T* const top = data + static_cast<size_t>(down.first) * in.row;
      const T* const bottom = data + static_cast<size_t>(down.second) * in.row;
      const size_t left = static_cast<size_t>(across.first) * in.pixel;
      const size_t right = static_cast<size_t>(across.second) * in.pixel;
      const float wx = part(across.weight), wy = part(down.weight);
      for (size_t c = 0; c < channels; ++c) {
        const size_t at = c * in.channel;
        const auto a = static_cast<float>(top[left + at]), b = static_cast<float>(top[right + at]);
        const auto d = static_cast<float>(bottom[left + at]);
        const auto e = static_cast<float>(bottom[right + at]);
        const float upper = a + (b - a) * wx, lower = d + (e - d) * wx;
        out[at] = upper + (lower - upper) * wy;
      }
    }
  }
}

}  // namespace

void warp(const ArrayView& in, const WarpSpec& spec, float* to) {
  in.floats ? warp_values<float>(in, spec, to) : warp_values<uint8_t>(in, spec, to);
}

std::optional<Sampling> sampling_named(std::string_view name) {
  for (const auto& [each, sampling] : kSamplings) {
    if (each == name) return sampling;
  }
  return std::nullopt;
}
std::string_view name_of(Sampling sampling) {
  return kSamplings[static_cast<size_t>(sampling)].first;
}

std::optional<Beyond> beyond_named(std::string_view name) {
  for (const auto& [each, beyond] : kBeyonds) {
    if (each == name) return beyond;
  }
  return std::nullopt;
}
std::string_view name_of(Beyond beyond) { return kBeyonds[static_cast<size_t>(beyond)].first; }

void Warper::begin(const ImageView& in, const WarpSpec& spec) {
  in_ = in;
  spec_ = spec;
}

void Warper::row(int y, int x0, int x1, uint8_t* to) {
  const int count = x1 - x0;
  xs_.resize(static_cast<size_t>(count));
  ys_.resize(static_cast<size_t>(count));
  const AffineMap& map = spec_.map;
  // A pixel's place does not depend on the columns that are wanted.
  const int64_t step_x = fixed(map.a), step_y = fixed(map.d);
  const int64_t first_x = fixed(map.b * y + map.c) + x0 * step_x;
  const int64_t first_y = fixed(map.e * y + map.f) + x0 * step_y;
  for (int i = 0; i < count; ++i) {
    xs_[static_cast<size_t>(i)] = first_x + i * step_x;
    ys_[static_cast<size_t>(i)] = first_y + i * step_y;
  }
  switch (in_.channels) {
    case 1:
      return sample_row<1>(in_, spec_, xs_.data(), ys_.data(), count, to);
    case 3:
      return sample_row<3>(in_, spec_, xs_.data(), ys_.data(), count, to);
    case 4:
      return sample_row<4>(in_, spec_, xs_.data(), ys_.data(), count, to);
    default:
      for (int i = 0; i < count; ++i, to += in_.channels) {
        sample(in_, spec_, xs_[static_cast<size_t>(i)], ys_[static_cast<size_t>(i)], to);
      }
  }
}

}  // namespace penstock::image
