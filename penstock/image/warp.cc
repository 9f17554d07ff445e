#include "penstock/image/warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
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

// The weight of the second of two neighbours: of 2^14 for bytes, of 1 for float32.
template <class T>
auto weight_of(int64_t at) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<int32_t>(at >> (kPlaces - kWeightBits) & (kWhole - 1));
  } else {
    return static_cast<float>(at & (kPixel - 1)) * 0x1p-24F;
  }
}

// Two neighbours along one axis; the coordinate between them.
struct Neighbours {
  int first, second;
  int64_t at;
};

int reflected(int64_t place, int size) {
  if (place >= -size && place < 2 * int64_t{size}) {
    if (place < 0) return static_cast<int>(-1 - place);
    return static_cast<int>(place < size ? place : 2 * int64_t{size} - 1 - place);
  }
  const int64_t period = int64_t{2} * size;
  place %= period;
  if (place < 0) place += period;
  return static_cast<int>(place < size ? place : period - 1 - place);
}

// False: the constant. `rounding`: coordinates may be off by so much, and a pixel on the border is
// inside.
bool find_neighbours(int64_t at, int size, const WarpOptions& options, int64_t rounding,
                     Neighbours& found) {
  const int64_t last = (size - 1) * kPixel;
  if (at < 0 || at > last) {
    switch (options.beyond) {
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
  if (options.sampling == Sampling::kNearest) at = (at + kPixel / 2) & ~(kPixel - 1);
  const int64_t first = at >> kPlaces;
  if (options.beyond == Beyond::kReflect) {
    found = {reflected(first, size), reflected(first + 1, size), at};
  } else {
    found = {static_cast<int>(first), static_cast<int>(std::min<int64_t>(first + 1, size - 1)), at};
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

float blended(float top, float top_right, float bottom, float bottom_right, float wx, float wy) {
  const float left = top + (bottom - top) * wy;
  const float right = top_right + (bottom_right - top_right) * wy;
  return left + (right - left) * wx;
}

// A pixel whose four neighbours are in these rows, from these addresses on.
template <class T, int kChannels, class Weight>
void blend(const T* top, const T* bottom, Weight wx, Weight wy, T* to) {
  for (int c = 0; c < kChannels; ++c) {
    to[c] = blended(top[c], top[kChannels + c], bottom[c], bottom[kChannels + c], wx, wy);
  }
}

// The values that blend reads of a row, and that it writes.
template <class T, int kChannels>
constexpr int kRead = 2 * kChannels;
template <class T, int kChannels>
constexpr int kWritten = kChannels;

#if defined(__x86_64__)
// The same of 3 or 4 channels at once, with the two neighbours of a row side by side.
template <int kChannels>
uint32_t blend_bytes(__m128i top, __m128i bottom, int32_t wx, int32_t wy) {
  constexpr int kDown = kWeightBits - kKept, kAcross = kWeightBits + kKept;
  const __m128i zero = _mm_setzero_si128();
  const __m128i both = _mm_unpacklo_epi8(top, bottom);
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
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_packus_epi16(words, words)));
}
__m128i eight_bytes(const uint8_t* from) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
}
template <int kChannels>
__m128i side_by_side(const uint8_t* left, const uint8_t* right) {
  auto pixel = [](const uint8_t* at) {
    uint16_t low;
    std::memcpy(&low, at, 2);
    const uint64_t more = kChannels == 4 ? at[2] | at[3] << 8 : at[2];
    return low | more << 16;
  };
  return _mm_cvtsi64_si128(static_cast<int64_t>(pixel(left) | pixel(right) << (8 * kChannels)));
}
template <>
void blend<uint8_t, 3>(const uint8_t* top, const uint8_t* bottom, int32_t wx, int32_t wy,
                       uint8_t* to) {
  const uint32_t pixel = blend_bytes<3>(eight_bytes(top), eight_bytes(bottom), wx, wy);
  std::memcpy(to, &pixel, 4);
}
template <>
void blend<uint8_t, 4>(const uint8_t* top, const uint8_t* bottom, int32_t wx, int32_t wy,
                       uint8_t* to) {
  const uint32_t pixel = blend_bytes<4>(eight_bytes(top), eight_bytes(bottom), wx, wy);
  std::memcpy(to, &pixel, 4);
}
template <>
constexpr int kRead<uint8_t, 3> = 8;
template <>
constexpr int kWritten<uint8_t, 3> = 4;
#endif

template <class T>
const T* row_of(const ImageView& in, int64_t y) {
  return reinterpret_cast<const T*>(in.row(static_cast<int>(y)));
}

template <class T>
T value_of(double value) {
  if constexpr (sizeof(T) == 1) {
    return static_cast<uint8_t>(std::clamp(std::floor(value + 0.5), 0.0, 255.0));
  } else {
    return static_cast<float>(value);
  }
}

// A pixel anywhere. kChannels 0: any number.
template <class T, int kChannels>
void sample(const ImageView& in, const WarpOptions& options, int64_t x, int64_t y, T* to) {
  const int channels = kChannels > 0 ? kChannels : in.channels;
  Neighbours across, down;
  const int64_t rounding = in.width / 2 + 1;
  if (!find_neighbours(x, in.width, options, rounding, across) ||
      !find_neighbours(y, in.height, options, rounding, down)) {
    std::fill_n(to, channels, value_of<T>(options.value));
    return;
  }
  const T* const top = row_of<T>(in, down.first);
  const T* const bottom = row_of<T>(in, down.second);
  const int left = across.first * channels, right = across.second * channels;
  const auto wx = weight_of<T>(across.at), wy = weight_of<T>(down.at);
#if defined(__x86_64__)
  if constexpr (sizeof(T) == 1 && kChannels >= 3) {
    const uint32_t pixel =
        blend_bytes<kChannels>(side_by_side<kChannels>(top + left, top + right),
                               side_by_side<kChannels>(bottom + left, bottom + right), wx, wy);
    std::memcpy(to, &pixel, kChannels);
    return;
  }
#endif
  for (int c = 0; c < channels; ++c) {
    to[c] = blended(top[left + c], top[right + c], bottom[left + c], bottom[right + c], wx, wy);
  }
}

// Pixels of which most lie inside the image.
template <class T, int kChannels>
void sample_row(const ImageView& in, const WarpOptions& options, const int64_t* xs,
                const int64_t* ys, int count, T* to) {
  const bool nearest = options.sampling == Sampling::kNearest;
  const int64_t up = nearest ? kPixel / 2 : 0;  // to the nearest pixel
  // Coordinates below these have all that is read in their rows.
  constexpr int kReads = kRead<T, kChannels>;
  const int columns =
      nearest ? in.width - 1 : std::max(0, (in.width * kChannels - kReads) / kChannels + 1);
  const bool wide = nearest || in.width * kChannels >= kReads;
  const uint64_t most_x = wide ? static_cast<uint64_t>(columns) << kPlaces : 0;
  const uint64_t most_y = static_cast<uint64_t>(in.height - 1) << kPlaces;
  const int most = (count * kChannels - kWritten<T, kChannels>) / kChannels;
  for (int i = 0; i < count; ++i, to += kChannels) {
    const auto x = static_cast<uint64_t>(xs[i]), y = static_cast<uint64_t>(ys[i]);
    if (x >= most_x || y >= most_y || i > most) {
      sample<T, kChannels>(in, options, xs[i], ys[i], to);
      continue;
    }
    const T* from = row_of<T>(in, (ys[i] + up) >> kPlaces) + ((xs[i] + up) >> kPlaces) * kChannels;
    if (nearest) {
      std::memcpy(to, from, kChannels * sizeof(T));
    } else {
      const T* below =
          reinterpret_cast<const T*>(reinterpret_cast<const uint8_t*>(from) + in.stride);
      blend<T, kChannels>(from, below, weight_of<T>(xs[i]), weight_of<T>(ys[i]), to);
    }
  }
}

template <class T>
void sample_row(const ImageView& in, const WarpOptions& options, const int64_t* xs,
                const int64_t* ys, int count, T* to) {
  switch (in.channels) {
    case 1:
      return sample_row<T, 1>(in, options, xs, ys, count, to);
    case 3:
      return sample_row<T, 3>(in, options, xs, ys, count, to);
    case 4:
      return sample_row<T, 4>(in, options, xs, ys, count, to);
    default:
      for (int i = 0; i < count; ++i, to += in.channels) {
        sample<T, 0>(in, options, xs[i], ys[i], to);
      }
  }
}

}  // namespace

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

void Warper::begin(const ImageView& in, const Map& map, const WarpOptions& options) {
  in_ = in;
  map_ = map;
  options_ = options;
}

void Warper::row(int y, int x0, int x1, uint8_t* to) {
  const int count = x1 - x0;
  xs_.resize(static_cast<size_t>(count));
  ys_.resize(static_cast<size_t>(count));
  const Map& map = map_;
  if (map.affine()) {
    // A pixel's place does not depend on the columns that are wanted.
    const int64_t step_x = fixed(map.a), step_y = fixed(map.d);
    const int64_t first_x = fixed(map.b * y + map.c) + x0 * step_x;
    const int64_t first_y = fixed(map.e * y + map.f) + x0 * step_y;
    for (int i = 0; i < count; ++i) {
      xs_[static_cast<size_t>(i)] = first_x + i * step_x;
      ys_[static_cast<size_t>(i)] = first_y + i * step_y;
    }
  } else {
    constexpr double kFar = 1 << 30;
    for (int i = 0; i < count; ++i) {
      const double x = x0 + i;
      double w = map.g * x + map.h * y + 1;
      if (std::fabs(w) < 1 / kFar) w = 1 / kFar;  // the horizon
      xs_[static_cast<size_t>(i)] =
          fixed(std::clamp((map.a * x + map.b * y + map.c) / w, -kFar, kFar));
      ys_[static_cast<size_t>(i)] =
          fixed(std::clamp((map.d * x + map.e * y + map.f) / w, -kFar, kFar));
    }
  }
  if (in_.value_bytes == 1) {
    sample_row(in_, options_, xs_.data(), ys_.data(), count, to);
  } else {
    sample_row(in_, options_, xs_.data(), ys_.data(), count, reinterpret_cast<float*>(to));
  }
}

}  // namespace penstock::image
