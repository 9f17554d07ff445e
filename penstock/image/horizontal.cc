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

// Shuffles 16 bytes of pixels to pairs: of inputs 2k and 2k + 1, for each channel. Bytes that are
// not there become 0.
template <int kChannels>
struct PairBytes {
  int8_t of[3][16] = {};
  constexpr PairBytes() {
    for (int k = 0; k < 3; ++k) {
      for (int i = 0; i < 16; ++i) {
        const int channel = i / 4, place = (2 * k + i / 2 % 2) * kChannels + channel;
        const bool there = i % 2 == 0 && channel < kChannels && place < 16;
        of[k][i] = static_cast<int8_t>(there ? place : -1);
      }
    }
  }
};

// As sum_places, of groups [first, end) of four wanted places each. A register has two places, one
// in each half. 16 bytes are the pixels of four inputs or more; shuffled, they are pairs of 16-bit
// numbers, two inputs of one channel; multiplied with the parts of their weights, and pairs added,
// they are the sums of four channels.
// `kPairs`: of inputs a place is made of, all in its 16 bytes; 0: four inputs after four.
template <int kChannels, int kPairs>
__attribute__((target("avx2"))) void sum_groups_avx2(const uint8_t* in, uint8_t* to,
                                                     const HorizontalGroups& groups, int first,
                                                     int end, bool flip) {
  static_assert(kChannels == 3 || (kChannels == 4 && kPairs <= 2));
  constexpr PairBytes<kChannels> kPairBytes;
  __m256i pairs[3];
  for (int k = 0; k < 3; ++k) {
    pairs[k] = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kPairBytes.of[k])));
  }
  const __m128i order =
      kChannels == 4
          ? (flip ? _mm_setr_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3)
                  : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
          : (flip ? _mm_setr_epi8(12, 13, 14, 8, 9, 10, 4, 5, 6, 0, 1, 2, -1, -1, -1, -1)
                  : _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
  const int fours = kPairs > 0 ? 1 : groups.fours;
  constexpr int kInFour = kPairs > 0 ? kPairs : 2;
  const size_t group_size = static_cast<size_t>(fours * kInFour) * HorizontalGroups::kPairWeights;
  for (int step = first; step < end; ++step) {
    // Bytes are written upwards: those behind a group are overwritten by the next.
    const int g = flip ? first + end - 1 - step : step;
    const uint32_t* begins = groups.begins.data() + 4 * static_cast<ptrdiff_t>(g);
    const uint8_t* at[4];
    for (int i = 0; i < 4; ++i) at[i] = in + begins[i];
    const auto* weights = reinterpret_cast<const __m256i*>(groups.weights.data() +
                                                           static_cast<size_t>(g) * group_size);
    __m256i low[2], high[2];
    low[0] = low[1] = _mm256_set1_epi32(kHalfUnit);
    high[0] = high[1] = _mm256_setzero_si256();
    for (int f = 0; f < fours; ++f) {
      __m256i bytes[2];
      for (int i = 0; i < 2; ++i) {
        const auto* halves0 = reinterpret_cast<const __m128i*>(at[i] + 4 * f * kChannels);
        const auto* halves1 = reinterpret_cast<const __m128i*>(at[i + 2] + 4 * f * kChannels);
        bytes[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(halves0)),
                                           _mm_loadu_si128(halves1), 1);
      }
      for (int k = 0; k < kInFour; ++k, weights += 4) {
        for (int i = 0; i < 2; ++i) {
          const __m256i pixels = _mm256_shuffle_epi8(bytes[i], pairs[k]);
          low[i] = _mm256_add_epi32(low[i],
                                    _mm256_madd_epi16(pixels, _mm256_loadu_si256(weights + 2 * i)));
          high[i] = _mm256_add_epi32(
              high[i], _mm256_madd_epi16(pixels, _mm256_loadu_si256(weights + 2 * i + 1)));
        }
      }
    }
    for (int i = 0; i < 2; ++i) {
      low[i] = _mm256_srai_epi32(_mm256_add_epi32(low[i], _mm256_slli_epi32(high[i], kLowBits)),
                                 AxisWeights::kBits);
    }
    const __m256i words = _mm256_packs_epi32(low[0], low[1]);
    const __m256i four = _mm256_permute4x64_epi64(_mm256_packus_epi16(words, words), 0b1000);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm_shuffle_epi8(_mm256_castsi256_si128(four), order));
    to += 4 * kChannels;
  }
}

using SumGroups = void (*)(const uint8_t*, uint8_t*, const HorizontalGroups&, int, int, bool);
SumGroups avx2_for(int channels, int pairs) {
  switch (pairs) {
    case 1:
      return channels == 3 ? sum_groups_avx2<3, 1> : sum_groups_avx2<4, 1>;
    case 2:
      return channels == 3 ? sum_groups_avx2<3, 2> : sum_groups_avx2<4, 2>;
    case 3:
      return sum_groups_avx2<3, 3>;
    default:
      return channels == 3 ? sum_groups_avx2<3, 0> : sum_groups_avx2<4, 0>;
  }
}
#endif

}  // namespace

void HorizontalPass::reset(const AxisScale& scale, int channels) {
  if (!axis_.reset(scale) && channels == channels_) return;
  channels_ = 0;  // and stays so if there is no memory
  count_ = scale.count;
  row_bytes_ = static_cast<size_t>((axis_.end_input() - axis_.first_input()) * channels);
#if defined(__x86_64__)
  if (has_vectors() && (channels == 3 || channels == 4)) make_groups(channels);
#endif
  channels_ = channels;
}

void HorizontalPass::make_groups(int channels) {
  int most = 1;
  for (int i = 0; i < count_; ++i) most = std::max(most, axis_.taps(i));
  // Five inputs of three channels are in 15 bytes.
  const bool in_16_bytes = most <= (channels == 3 ? 5 : 4);
  groups_.pairs = in_16_bytes ? (most + 1) / 2 : 0;
  groups_.fours = in_16_bytes ? 1 : (most + 3) / 4;
  const int pairs = in_16_bytes ? groups_.pairs : 2 * groups_.fours;
  const int groups = (count_ + 3) / 4;
  groups_.begins.resize(static_cast<size_t>(4 * groups));
  groups_.weights.assign(static_cast<size_t>(groups * pairs) * HorizontalGroups::kPairWeights, 0);
  for (int p = 0; p < 4 * groups; ++p) {
    // Places beyond the last one have weights of 0.
    const int begin = axis_.begin(std::min(p, count_ - 1)) - axis_.first_input();
    groups_.begins[static_cast<size_t>(p)] = static_cast<uint32_t>(begin * channels);
    if (p >= count_) continue;
    const int32_t* weights = axis_.weights(p);
    int16_t* const group = groups_.weights.data() +
                           static_cast<size_t>(p / 4 * pairs) * HorizontalGroups::kPairWeights;
    for (int k = 0; k < axis_.taps(p); ++k) {
      // The first register has places 0 and 2 of the group, the second one 1 and 3; each has its
      // low parts before its high ones.
      int16_t* to = group + static_cast<size_t>(k / 2) * HorizontalGroups::kPairWeights +
                    p % 2 * 32 + p % 4 / 2 * 8 + k % 2;
      for (int c = 0; c < 4; ++c) {
        to[2 * c] = static_cast<int16_t>(weights[k] & ((1 << kLowBits) - 1));
        to[2 * c + 16] = static_cast<int16_t>(weights[k] >> kLowBits);
      }
    }
  }
  groups_.count = groups;
  // The groups whose 16 bytes are all in the row; a copy of its end is for the others.
  const size_t bytes = 16 + static_cast<size_t>(4 * (groups_.fours - 1) * channels);
  groups_.inside = 0;
  while (groups_.inside < groups &&
         groups_.begins[static_cast<size_t>(4 * groups_.inside + 3)] + bytes <= row_bytes_) {
    ++groups_.inside;
  }
  end_begin_ = groups_.inside == groups ? row_bytes_
                                        : groups_.begins[static_cast<size_t>(4 * groups_.inside)];
  end_.resize(row_bytes_ - end_begin_ + bytes);
}

void HorizontalPass::row(const uint8_t* in, uint8_t* to, bool flip) {
#if defined(__x86_64__)
  if (has_vectors() && (channels_ == 3 || channels_ == 4)) {
    const auto sum = avx2_for(channels_, groups_.pairs);
    std::memcpy(end_.data(), in + end_begin_, row_bytes_ - end_begin_);
    const uint8_t* const end = end_.data() - end_begin_;
    const int last = groups_.count;
    if (flip) {
      to -= (4 * last - count_) * channels_;
      sum(end, to, groups_, groups_.inside, last, true);
      to += 4 * (last - groups_.inside) * channels_;
      return sum(in, to, groups_, 0, groups_.inside, true);
    }
    sum(in, to, groups_, 0, groups_.inside, false);
    return sum(end, to + 4 * groups_.inside * channels_, groups_, groups_.inside, last, false);
  }
#endif
  switch (channels_) {
    case 1:
      return sum_places<1>(in, to, axis_, count_, flip);
    case 3:
      return sum_places<3>(in, to, axis_, count_, flip);
    case 4:
      return sum_places<4>(in, to, axis_, count_, flip);
    default:
      return sum_places_of(channels_, in, to, axis_, count_, flip);
  }
}

}  // namespace penstock::image
