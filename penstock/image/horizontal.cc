#include "penstock/image/horizontal.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock::image {
namespace {

constexpr int32_t kHalfUnit = 1 << (AxisWeights::kBits - 1);
// A weight is two numbers of 16 bits: its lowest bits, and those above.
constexpr int kLowBits = 11;
constexpr size_t kSpread = 32;  // numbers for four inputs: 16 low parts, 16 high ones

uint8_t unit(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> AxisWeights::kBits, 0, 255));
}

// The i-th wanted place.
template <int kChannels>
void sum_place(const uint8_t* in, uint8_t* to, const AxisWeights& axis, int i) {
  const uint8_t* at = in + (axis.begin(i) - axis.first_input()) * kChannels;
  const int32_t* weights = axis.weights(i);
  const int taps = axis.taps(i);
  int32_t sums[kChannels];
  for (int32_t& sum : sums) sum = kHalfUnit;
  for (int k = 0; k < taps; ++k) {
    for (int c = 0; c < kChannels; ++c) sums[c] += at[k * kChannels + c] * weights[k];
  }
  for (int c = 0; c < kChannels; ++c) to[c] = unit(sums[c]);
}

template <int kChannels>
void sum_places(const uint8_t* in, uint8_t* to, const AxisWeights& axis, int count, bool flip) {
  for (int p = 0; p < count; ++p, to += kChannels) {
    sum_place<kChannels>(in, to, axis, flip ? count - 1 - p : p);
  }
}

// Of any number of channels.
void sum_places_of(int channels, const uint8_t* in, uint8_t* to, const AxisWeights& axis, int count,
                   bool flip) {
  for (int p = 0; p < count; ++p) {
    const int i = flip ? count - 1 - p : p;
    const uint8_t* at = in + (axis.begin(i) - axis.first_input()) * channels;
    const int32_t* weights = axis.weights(i);
    for (int c = 0; c < channels; ++c) {
      int32_t sum = kHalfUnit;
      for (int k = 0; k < axis.taps(i); ++k) sum += at[k * channels + c] * weights[k];
      *to++ = unit(sum);
    }
  }
}

#if defined(__x86_64__)
bool has_vectors() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

// As sum_places. Four inputs at once: 16 bytes are the pixels of four inputs or more. They become
// pairs of 16-bit numbers, two inputs of one channel, two inputs in each half; multiplied with the
// parts of their weights, and pairs added, they are four sums in each half.
// `kFours`: as many as `any_fours`, unrolled; 0: any.
template <int kChannels, int kFours>
__attribute__((target("avx2"))) void sum_places_avx2(const uint8_t* in, uint8_t* to,
                                                     const AxisWeights& axis, const int16_t* spread,
                                                     int any_fours, int count, bool flip) {
  const int fours = kFours > 0 ? kFours : any_fours;
  static_assert(kChannels == 3 || kChannels == 4);
  constexpr char kZ = -1, kC = kChannels;
  const __m256i pairs = _mm256_setr_epi8(
      0, kZ, kC, kZ, 1, kZ, kC + 1, kZ, 2, kZ, kC + 2, kZ, kC == 4 ? 3 : kZ, kZ,
      kC == 4 ? kC + 3 : kZ, kZ, 2 * kC, kZ, 3 * kC, kZ, 2 * kC + 1, kZ, 3 * kC + 1, kZ, 2 * kC + 2,
      kZ, 3 * kC + 2, kZ, kC == 4 ? 2 * kC + 3 : kZ, kZ, kC == 4 ? 3 * kC + 3 : kZ, kZ);
  const int first = axis.first_input();
  // A place before this one is 16 bytes or more from the end of the row, for all of its inputs.
  const int end = (axis.end_input() - first) * kChannels - 16 - 4 * (fours - 1) * kChannels;
  for (int p = 0; p < count; ++p, to += kChannels) {
    const int i = flip ? count - 1 - p : p;
    const int at = (axis.begin(i) - first) * kChannels;
    // Four bytes are written, of which the next place overwrites the fourth.
    if (at > end || (kChannels == 3 && p + 1 == count)) {
      sum_place<kChannels>(in, to, axis, i);
      continue;
    }
    const int16_t* weights = spread + static_cast<size_t>(i * fours) * kSpread;
    __m256i low = _mm256_setzero_si256(), high = low;
    for (int k = 0; k < fours; ++k, weights += kSpread) {
      const __m128i bytes =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + at + 4 * k * kChannels));
      const __m256i pixels = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), pairs);
      const auto* parts = reinterpret_cast<const __m256i*>(weights);
      low = _mm256_add_epi32(low, _mm256_madd_epi16(pixels, _mm256_loadu_si256(parts)));
      high = _mm256_add_epi32(high, _mm256_madd_epi16(pixels, _mm256_loadu_si256(parts + 1)));
    }
    const __m256i halves = _mm256_add_epi32(low, _mm256_slli_epi32(high, kLowBits));
    __m128i sums =
        _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    sums = _mm_srai_epi32(_mm_add_epi32(sums, _mm_set1_epi32(kHalfUnit)), AxisWeights::kBits);
    const __m128i words = _mm_packs_epi32(sums, sums);
    const int pixel = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
    std::memcpy(to, &pixel, 4);
  }
}

using SumPlaces = void (*)(const uint8_t*, uint8_t*, const AxisWeights&, const int16_t*, int, int,
                           bool);
template <int kChannels>
SumPlaces avx2_for(int fours) {
  if (fours == 1) return sum_places_avx2<kChannels, 1>;
  if (fours == 2) return sum_places_avx2<kChannels, 2>;
  return sum_places_avx2<kChannels, 0>;
}
#endif

}  // namespace

void HorizontalPass::reset(const AxisScale& scale) {
  if (!axis_.reset(scale)) return;
  count_ = scale.count;
#if defined(__x86_64__)
  if (has_vectors()) spread();
#endif
}

void HorizontalPass::spread() {
  int most = 1;
  for (int i = 0; i < count_; ++i) most = std::max(most, axis_.taps(i));
  fours_ = (most + 3) / 4;
  spread_.assign(static_cast<size_t>(count_ * fours_) * kSpread, 0);
  int16_t* to = spread_.data();
  for (int i = 0; i < count_; ++i) {
    const int32_t* weights = axis_.weights(i);
    const int taps = axis_.taps(i);
    for (int begin = 0; begin < 4 * fours_; begin += 4, to += kSpread) {
      for (int k = begin; k < std::min(begin + 4, taps); ++k) {
        const auto low = static_cast<int16_t>(weights[k] & ((1 << kLowBits) - 1));
        const auto high = static_cast<int16_t>(weights[k] >> kLowBits);
        // Of inputs 0 and 1 in the first half, in turns for each channel; 2 and 3 in the second.
        const int place = (k - begin) / 2 * 8 + k % 2;
        for (int c = 0; c < 4; ++c) {
          to[place + 2 * c] = low;
          to[16 + place + 2 * c] = high;
        }
      }
    }
  }
}

void HorizontalPass::row(const uint8_t* in, uint8_t* to, int channels, bool flip) const {
#if defined(__x86_64__)
  if (has_vectors() && (channels == 3 || channels == 4)) {
    const auto sum = channels == 3 ? avx2_for<3>(fours_) : avx2_for<4>(fours_);
    return sum(in, to, axis_, spread_.data(), fours_, count_, flip);
  }
#endif
  switch (channels) {
    case 1:
      return sum_places<1>(in, to, axis_, count_, flip);
    case 3:
      return sum_places<3>(in, to, axis_, count_, flip);
    case 4:
      return sum_places<4>(in, to, axis_, count_, flip);
    default:
      return sum_places_of(channels, in, to, axis_, count_, flip);
  }
}

}  // namespace penstock::image
