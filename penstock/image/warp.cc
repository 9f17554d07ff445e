#include "penstock/image/warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
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
    return static_cast<float>(static_cast<int32_t>(at & (kPixel - 1))) * 0x1p-24F;
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
[[gnu::noinline]] void sample(const ImageView& in, const WarpOptions& options, int64_t x, int64_t y,
                              T* to) {
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

// The coordinates of pixels in a row of the result, one step apart.
struct Walk {
  int64_t x, y, step_x, step_y;

  Walk from(int i) const { return {x + i * step_x, y + i * step_y, step_x, step_y}; }
};

// Pixels [first, end) of a row.
struct Span {
  int first, end;
};

// Those of `count` pixels whose coordinate along one axis is in [0, most).
Span inside(int64_t at, int64_t step, int64_t most, int count) {
  int64_t first = 0, end = count;
  if (step > 0) {
    if (at < 0) first = (-at + step - 1) / step;
    end = at < most ? (most - at + step - 1) / step : 0;
  } else if (step < 0) {
    if (at >= most) first = (at - most) / -step + 1;
    end = at >= 0 ? at / -step + 1 : 0;
  } else if (at < 0 || at >= most) {
    end = 0;
  }
  return {static_cast<int>(std::min<int64_t>(first, count)),
          static_cast<int>(std::min<int64_t>(end, count))};
}

// Pixels whose neighbours are in memory; `to` has space for kWritten values at the last one.
template <class T, int kChannels>
void blend_run(const ImageView& in, Walk at, int count, T* to) {
  // Copies, which the compiler knows not to change when a pixel is written.
  const uint8_t* const data = in.data;
  const size_t stride = in.stride;
  for (int i = 0; i < count; ++i, to += kChannels, at = at.from(1)) {
    const uint8_t* const row = data + static_cast<size_t>(at.y >> kPlaces) * stride;
    const int64_t column = (at.x >> kPlaces) * kChannels;
    blend<T, kChannels>(reinterpret_cast<const T*>(row) + column,
                        reinterpret_cast<const T*>(row + stride) + column, weight_of<T>(at.x),
                        weight_of<T>(at.y), to);
  }
}

#if defined(__x86_64__)
// The same, two pixels at a time; the integers are the same.
template <int kChannels>
__attribute__((target("avx2"))) void blend_run_avx2(const ImageView& in, Walk at, int count,
                                                    uint8_t* to) {
  constexpr int kDown = kWeightBits - kKept, kAcross = kWeightBits + kKept;
  const uint8_t* const data = in.data;
  const size_t stride = in.stride;
  const __m256i zero = _mm256_setzero_si256();
  const __m256i half_down = _mm256_set1_epi32(1 << (kDown - 1));
  const __m256i half_across = _mm256_set1_epi32(1 << (kAcross - 1));
  for (; count >= 2; count -= 2, to += 2 * kChannels) {
    __m128i both[2];
    __m256i down[2], across[2];
    for (int k = 0; k < 2; ++k, at = at.from(1)) {
      const int64_t x = at.x, y = at.y;
      const uint8_t* const top =
          data + static_cast<size_t>(y >> kPlaces) * stride + (x >> kPlaces) * kChannels;
      both[k] = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(top)),
                                  _mm_loadl_epi64(reinterpret_cast<const __m128i*>(top + stride)));
      // Both weights of a pair: kWhole - w, and w above it.
      across[k] = _mm256_set1_epi32(kWhole + weight_of<uint8_t>(x) * 0xFFFF);
      down[k] = _mm256_set1_epi32(kWhole + weight_of<uint8_t>(y) * 0xFFFF);
    }
    const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(both[0]), both[1], 1);
    const __m256i vertical = _mm256_blend_epi32(down[0], down[1], 0xF0);
    const __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi8(bytes, zero), vertical);
    const __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi8(bytes, zero), vertical);
    const __m256i pair =
        _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(low, half_down), kDown),
                           _mm256_srai_epi32(_mm256_add_epi32(high, half_down), kDown));
    const __m256i sum =
        _mm256_madd_epi16(_mm256_unpacklo_epi16(pair, _mm256_srli_si256(pair, 2 * kChannels)),
                          _mm256_blend_epi32(across[0], across[1], 0xF0));
    const __m256i values = _mm256_srai_epi32(_mm256_add_epi32(sum, half_across), kAcross);
    const __m256i words = _mm256_packs_epi32(values, values);
    const __m256i pixels = _mm256_packus_epi16(words, words);
    const int32_t first = _mm_cvtsi128_si32(_mm256_castsi256_si128(pixels));
    const int32_t second = _mm_cvtsi128_si32(_mm256_extracti128_si256(pixels, 1));
    std::memcpy(to, &first, 4);
    std::memcpy(to + kChannels, &second, 4);
  }
  _mm256_zeroupper();  // GCC leaves it out before a call at the end, and SSE would be slow
  blend_run<uint8_t, kChannels>(in, at, count, to);
}
#endif

template <class T, int kChannels>
auto best_run() {
#if defined(__x86_64__)
  if constexpr (sizeof(T) == 1 && kChannels >= 3) {
    if (__builtin_cpu_supports("avx2")) return blend_run_avx2<kChannels>;
  }
#endif
  return blend_run<T, kChannels>;
}

// Pixels of which most lie inside the image.
template <class T, int kChannels>
void sample_row(const ImageView& in, const WarpOptions& options, const Walk& at, int count, T* to) {
  static const auto blend_best = best_run<T, kChannels>();
  const bool nearest = options.sampling == Sampling::kNearest;
  // Coordinates below these have all that is read in their rows.
  constexpr int kReads = kRead<T, kChannels>;
  const int values = in.width * kChannels;
  const int columns = nearest            ? in.width - 1
                      : values >= kReads ? (values - kReads) / kChannels + 1
                                         : 0;
  // Of the pixels behind it, blend would write beyond the row.
  const int last = (count * kChannels - kWritten<T, kChannels> + kChannels) / kChannels;
  const Span across = inside(at.x, at.step_x, columns * kPixel, count);
  const Span down = inside(at.y, at.step_y, (in.height - 1) * kPixel, count);
  const int first = std::max(across.first, down.first);
  const int end = std::max(first, std::min({across.end, down.end, last}));
  auto sample_each = [&](int from, int until) {
    for (int i = from; i < until; ++i) {
      const Walk place = at.from(i);
      sample<T, kChannels>(in, options, place.x, place.y, to + i * kChannels);
    }
  };
  sample_each(0, first);
  if (nearest) {
    for (int i = first; i < end; ++i) {
      const Walk place = at.from(i);
      const T* const row = row_of<T>(in, (place.y + kPixel / 2) >> kPlaces);
      std::memcpy(to + i * kChannels, row + ((place.x + kPixel / 2) >> kPlaces) * kChannels,
                  kChannels * sizeof(T));
    }
  } else {
    blend_best(in, at.from(first), end - first, to + first * kChannels);
  }
  sample_each(end, count);
}

template <class T>
void sample_row(const ImageView& in, const WarpOptions& options, const Walk& at, int count, T* to) {
  switch (in.channels) {
    case 1:
      return sample_row<T, 1>(in, options, at, count, to);
    case 3:
      return sample_row<T, 3>(in, options, at, count, to);
    case 4:
      return sample_row<T, 4>(in, options, at, count, to);
    default:
      for (int i = 0; i < count; ++i, to += in.channels) {
        const Walk place = at.from(i);
        sample<T, 0>(in, options, place.x, place.y, to);
      }
  }
}

// The same of any map.
template <class T>
void sample_row(const ImageView& in, const WarpOptions& options, const Map& map, int y, int x0,
                int x1, T* to) {
  if (map.affine()) {
    // A pixel's place does not depend on the columns that are wanted.
    const Walk row{fixed(map.b * y + map.c), fixed(map.e * y + map.f), fixed(map.a), fixed(map.d)};
    return sample_row(in, options, row.from(x0), x1 - x0, to);
  }
  constexpr double kFar = 1 << 30;
  for (int x = x0; x < x1; ++x, to += in.channels) {
    double w = map.g * x + map.h * y + 1;
    if (std::fabs(w) < 1 / kFar) w = 1 / kFar;  // the horizon
    const double across = std::clamp((map.a * x + map.b * y + map.c) / w, -kFar, kFar);
    const double down = std::clamp((map.d * x + map.e * y + map.f) / w, -kFar, kFar);
    sample<T, 0>(in, options, fixed(across), fixed(down), to);
  }
}

// A row of the result crosses many rows of the image, where the hardware prefetches nothing. So an
// image that fits into a core's cache is fetched first, from its beginning to its end.
__attribute__((always_inline)) inline void fetch(const ImageView& in) {
  constexpr size_t kLine = 64, kMaxBytes = 1 << 20;
  const size_t bytes = static_cast<size_t>(in.width) * static_cast<size_t>(in.pixel_bytes());
  if (bytes * static_cast<size_t>(in.height) > kMaxBytes) return;
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* const row = in.row(y);
    for (size_t i = 0; i < bytes; i += kLine) __builtin_prefetch(row + i, 0, 2);
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
  fetch(in);
  in_ = in;
  map_ = map;
  options_ = options;
}

void Warper::row(int y, int x0, int x1, uint8_t* to) const {
  if (in_.value_bytes == 1) {
    sample_row(in_, options_, map_, y, x0, x1, to);
  } else {
    sample_row(in_, options_, map_, y, x0, x1, reinterpret_cast<float*>(to));
  }
}

}  // namespace penstock::image
