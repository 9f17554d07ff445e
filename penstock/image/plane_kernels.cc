#include "penstock/image/plane_kernels.h"

#include <algorithm>
#include <cstring>

#include "penstock/image/plane_vectors.h"

namespace penstock::image {
namespace {

constexpr int kGrey = 128 * 64, kRound = 32;

void sum_rows_plain(const uint8_t* const* rows, const uint16_t* weights, int taps, int16_t* to,
                    size_t n) {
  constexpr size_t kPart = 64;
  for (size_t begin = 0; begin < n; begin += kPart) {
    uint16_t sums[kPart];
    // Each product is rounded down.
    for (uint16_t& sum : sums) sum = static_cast<uint16_t>(taps / 2);
    for (int k = 0; k < taps; ++k) {
      const uint8_t* __restrict row = rows[k] + begin;
      const uint32_t weight = weights[k];
      for (size_t i = 0; i < kPart; ++i) {
        sums[i] = static_cast<uint16_t>(sums[i] + (row[i] * weight >> 8));
      }
    }
    for (size_t i = 0; i < kPart; ++i) to[begin + i] = static_cast<int16_t>(sums[i] - 0x8000);
  }
}

void sum_places_plain(const int16_t* in, const PlaceGroups& groups, int shift, int16_t* to) {
  constexpr int kBlock = PlaceGroups::kPlaces * PlaceGroups::kTaps;
  for (int p = 0; p < groups.count * PlaceGroups::kPlaces; ++p) {
    const int16_t* at = in + groups.begins[static_cast<size_t>(p)];
    const int16_t* weights = groups.weights.data() +
                             static_cast<size_t>(p / 8 * groups.blocks * kBlock) + p % 4 * 16 +
                             p % 8 / 4 * 8;
    int sum = 1 << (shift - 1);
    for (int b = 0; b < groups.blocks; ++b, at += PlaceGroups::kTaps, weights += kBlock) {
      for (int k = 0; k < PlaceGroups::kTaps; ++k) sum += at[k] * weights[k];
    }
    to[p] = static_cast<int16_t>(std::clamp(sum >> shift, -0x8000, 0x7FFF));
  }
}

uint8_t level(int value) { return static_cast<uint8_t>(std::clamp(value >> 6, 0, 255)); }

void to_pixels_plain(const int16_t* y, const int16_t* cb, const int16_t* cr,
                     const int16_t* const* excess, uint8_t* to, int n, int channels) {
  for (int i = 0; i < n; ++i, to += channels) {
    const int grey = y[i] + kGrey + kRound;
    if (channels == 1) {
      to[0] = level(grey);
      continue;
    }
    int red = grey + cr[i] + rounded_product(cr[i], kRedCr);
    int green = grey - rounded_product(cb[i], kGreenCb) - rounded_product(cr[i], kGreenCr);
    int blue = grey + cb[i] + rounded_product(cb[i], kBlueCb);
    if (excess != nullptr) {
      red += excess[0][i];
      green += excess[1][i];
      blue += excess[2][i];
    }
    to[0] = level(red);
    to[1] = level(green);
    to[2] = level(blue);
    if (channels == 4) to[3] = 255;
  }
}

#if defined(__x86_64__)
PENSTOCK_AVX2 void sum_rows_avx2(const uint8_t* const* rows, const uint16_t* weights, int taps,
                                 int16_t* to, size_t n) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i offset = _mm256_set1_epi16(static_cast<int16_t>(0x8000));
  for (size_t begin = 0; begin < n; begin += 64) {
    __m256i sums[4];
    for (__m256i& sum : sums) sum = _mm256_set1_epi16(static_cast<int16_t>(taps / 2));
    for (int k = 0; k < taps; ++k) {
      const __m256i weight = _mm256_set1_epi16(static_cast<int16_t>(weights[k]));
      for (int i = 0; i < 2; ++i) {
        // value * 256; the upper half of the product is value * weight / 256.
        const __m256i row = load(rows[k] + begin + 32 * static_cast<size_t>(i));
        sums[2 * i] = _mm256_add_epi16(sums[2 * i],
                                       _mm256_mulhi_epu16(_mm256_unpacklo_epi8(zero, row), weight));
        sums[2 * i + 1] = _mm256_add_epi16(
            sums[2 * i + 1], _mm256_mulhi_epu16(_mm256_unpackhi_epi8(zero, row), weight));
      }
    }
    for (int i = 0; i < 2; ++i) {
      const __m256i a = _mm256_xor_si256(sums[2 * i], offset);
      const __m256i b = _mm256_xor_si256(sums[2 * i + 1], offset);
      int16_t* const at = to + begin + 32 * static_cast<size_t>(i);
      store(at, _mm256_permute2x128_si256(a, b, 0x20));
      store(at + 16, _mm256_permute2x128_si256(a, b, 0x31));
    }
  }
}

// Eight numbers of one place in each half of a register.
PENSTOCK_AVX2_PART __m256i two_places(const int16_t* one, const int16_t* other) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(one))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(other)), 1);
}

template <bool kOneBlock>
PENSTOCK_AVX2 void sum_groups_avx2(const int16_t* in, const PlaceGroups& groups, int shift,
                                   int16_t* to) {
  const int blocks = kOneBlock ? 1 : groups.blocks;
  const __m256i round = _mm256_set1_epi32(1 << (shift - 1));
  const __m128i by = _mm_cvtsi32_si128(shift);
  for (int g = 0; g < groups.count; ++g) {
    const int32_t* begins = groups.begins.data() + static_cast<ptrdiff_t>(8 * g);
    const int16_t* weights = groups.weights.data() + static_cast<ptrdiff_t>(64 * blocks) * g;
    __m256i sums[4];
    for (int i = 0; i < 4; ++i) {
      sums[i] = _mm256_madd_epi16(two_places(in + begins[i], in + begins[i + 4]),
                                  load(weights + 16 * static_cast<ptrdiff_t>(i)));
    }
    for (int b = 1; b < blocks; ++b) {
      for (int i = 0; i < 4; ++i) {
        const __m256i numbers = two_places(in + begins[i] + 8 * static_cast<ptrdiff_t>(b),
                                           in + begins[i + 4] + 8 * static_cast<ptrdiff_t>(b));
        const __m256i products = _mm256_madd_epi16(
            numbers,
            load(weights + 64 * static_cast<ptrdiff_t>(b) + 16 * static_cast<ptrdiff_t>(i)));
        sums[i] = _mm256_add_epi32(sums[i], products);
      }
    }
    const __m256i all =
        _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    const __m256i values = _mm256_sra_epi32(_mm256_add_epi32(all, round), by);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to + static_cast<ptrdiff_t>(8 * g)),
        _mm_packs_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1)));
  }
}

PENSTOCK_AVX2 void sum_places_avx2(const int16_t* in, const PlaceGroups& groups, int shift,
                                   int16_t* to) {
  if (groups.blocks == 1) return sum_groups_avx2<true>(in, groups, shift, to);
  return sum_groups_avx2<false>(in, groups, shift, to);
}

// The two numbers of a pair, of each of sixteen places, are taken out of one or two registers.
template <bool kInOne>
PENSTOCK_AVX512 void sum_wide_avx512(const int16_t* in, const PlaceGroups& groups, int shift,
                                     int16_t* to) {
  const __m512i round = _mm512_set1_epi32(1 << (shift - 1)), two = _mm512_set1_epi16(2);
  const __m128i by = _mm_cvtsi32_si128(shift);
  const int16_t* weights = groups.wide_weights.data();
  for (int g = 0; g < groups.wide; ++g) {
    const int16_t* const from = in + groups.wide_begins[static_cast<size_t>(g)];
    __m512i at = _mm512_loadu_si512(groups.wide_samples.data() + static_cast<ptrdiff_t>(32 * g));
    const __m512i low = _mm512_loadu_si512(from);
    const __m512i high = kInOne ? low : _mm512_loadu_si512(from + 32);
    __m512i sum = round;
    for (int k = 0; k < groups.pairs; ++k, weights += 32, at = _mm512_add_epi16(at, two)) {
      const __m512i numbers =
          kInOne ? _mm512_permutexvar_epi16(at, low) : _mm512_permutex2var_epi16(low, at, high);
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(numbers, _mm512_loadu_si512(weights)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + static_cast<ptrdiff_t>(16 * g)),
                        _mm512_cvtsepi32_epi16(_mm512_sra_epi32(sum, by)));
  }
}

void sum_places_avx512(const int16_t* in, const PlaceGroups& groups, int shift, int16_t* to) {
  if (groups.wide == 0) return sum_places_avx2(in, groups, shift, to);
  if (groups.in_one) return sum_wide_avx512<true>(in, groups, shift, to);
  return sum_wide_avx512<false>(in, groups, shift, to);
}

// 16 numbers in units of 1/64, in the lower half.
PENSTOCK_AVX2_PART __m128i levels(__m256i numbers) {
  const __m256i words = _mm256_srai_epi16(numbers, 6);
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

// Shuffles 16 values of each of three channels to the `part`-th 16 bytes of pixels.
struct ThreeBytes {
  int8_t of[3][3][16];
  constexpr ThreeBytes() : of() {
    for (int part = 0; part < 3; ++part) {
      for (int c = 0; c < 3; ++c) {
        for (int i = 0; i < 16; ++i) {
          const int at = 16 * part + i;
          of[part][c][i] = static_cast<int8_t>(at % 3 == c ? at / 3 : -1);
        }
      }
    }
  }
};

PENSTOCK_AVX2 void sixteen_pixels(const __m128i* colours, uint8_t* to, int channels) {
  auto* const at = reinterpret_cast<__m128i*>(to);
  if (channels == 1) return _mm_storeu_si128(at, colours[0]);
  if (channels == 4) {
    const __m128i opaque = _mm_set1_epi8(-1);
    const __m128i rg[2] = {_mm_unpacklo_epi8(colours[0], colours[1]),
                           _mm_unpackhi_epi8(colours[0], colours[1])};
    const __m128i ba[2] = {_mm_unpacklo_epi8(colours[2], opaque),
                           _mm_unpackhi_epi8(colours[2], opaque)};
    for (int i = 0; i < 2; ++i) {
      _mm_storeu_si128(at + 2 * i, _mm_unpacklo_epi16(rg[i], ba[i]));
      _mm_storeu_si128(at + 2 * i + 1, _mm_unpackhi_epi16(rg[i], ba[i]));
    }
    return;
  }
  static constexpr ThreeBytes kShuffles;
  for (int part = 0; part < 3; ++part) {
    __m128i bytes = _mm_setzero_si128();
    for (int c = 0; c < 3; ++c) {
      const __m128i places =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(kShuffles.of[part][c]));
      bytes = _mm_or_si128(bytes, _mm_shuffle_epi8(colours[c], places));
    }
    _mm_storeu_si128(at + part, bytes);
  }
}

PENSTOCK_AVX2 void to_pixels_avx2(const int16_t* y, const int16_t* cb, const int16_t* cr,
                                  const int16_t* const* excess, uint8_t* to, int n, int channels) {
  const __m256i grey_round = _mm256_set1_epi16(kGrey + kRound);
  const __m256i red_cr = _mm256_set1_epi16(kRedCr), green_cb = _mm256_set1_epi16(kGreenCb);
  const __m256i green_cr = _mm256_set1_epi16(kGreenCr), blue_cb = _mm256_set1_epi16(kBlueCb);
  for (int i = 0; i < n; i += 16) {
    const __m256i grey = _mm256_add_epi16(load(y + i), grey_round);
    __m128i colours[3];
    if (channels == 1) {
      colours[0] = levels(grey);
    } else {
      const __m256i b = load(cb + i), r = load(cr + i);
      __m256i red = _mm256_add_epi16(_mm256_add_epi16(grey, r), _mm256_mulhrs_epi16(r, red_cr));
      __m256i green = _mm256_sub_epi16(_mm256_sub_epi16(grey, _mm256_mulhrs_epi16(b, green_cb)),
                                       _mm256_mulhrs_epi16(r, green_cr));
      __m256i blue = _mm256_add_epi16(_mm256_add_epi16(grey, b), _mm256_mulhrs_epi16(b, blue_cb));
      if (excess != nullptr) {
        red = _mm256_add_epi16(red, load(excess[0] + i));
        green = _mm256_add_epi16(green, load(excess[1] + i));
        blue = _mm256_add_epi16(blue, load(excess[2] + i));
      }
      colours[0] = levels(red);
      colours[1] = levels(green);
      colours[2] = levels(blue);
    }
    if (n - i >= 16) {
      sixteen_pixels(colours, to + static_cast<ptrdiff_t>(i * channels), channels);
    } else {
      uint8_t rest[64];
      sixteen_pixels(colours, rest, channels);
      std::memcpy(to + static_cast<ptrdiff_t>(i * channels), rest,
                  static_cast<size_t>((n - i) * channels));
    }
  }
}
#endif

}  // namespace

void PlaceGroups::reset(const PlaneWeights& from, int wanted) {
  count = (wanted + kPlaces - 1) / kPlaces;
  blocks = (from.most_taps() + kTaps - 1) / kTaps;
  // Places beyond the last one have weights of 0.
  begins.assign(static_cast<size_t>(count * kPlaces), 0);
  weights.assign(static_cast<size_t>(count * blocks * kPlaces * kTaps), 0);
  for (int p = 0; p < wanted; ++p) {
    const int begin = from.begin(p) - from.first(), taps = from.taps(p);
    begins[static_cast<size_t>(p)] = begin;
    const int32_t* numbers = from.weights(p);
    for (int k = 0; k < taps; ++k) {
      const int block = p / kPlaces * blocks + k / kTaps;
      weights[static_cast<size_t>(block * kPlaces * kTaps + p % 4 * 16 + p % kPlaces / 4 * 8 +
                                  k % kTaps)] = static_cast<int16_t>(numbers[k]);
    }
  }
  make_wide(from, wanted);
}

void PlaceGroups::make_wide(const PlaneWeights& from, int wanted) {
  constexpr int kRegister = 32;  // numbers
  pairs = (from.most_taps() + 1) / 2;
  wide = 0;
  const int groups = (wanted + kWide - 1) / kWide;
  wide_begins.resize(static_cast<size_t>(groups));
  int most = 0;
  for (int g = 0; g < groups; ++g) {
    // Places in the opposite order begin with the last one.
    const int first = g * kWide, last = std::min(first + kWide, wanted) - 1;
    const int begin = std::min(from.begin(first), from.begin(last));
    const int end = std::max(from.begin(first), from.begin(last));
    wide_begins[static_cast<size_t>(g)] = begin - from.first();
    most = std::max(most, end - begin + 2 * pairs);
  }
  if (most > 2 * kRegister) return;
  in_one = most <= kRegister;
  // Places beyond the last one have weights of 0.
  wide_samples.assign(static_cast<size_t>(groups * 2 * kWide), 0);
  wide_weights.assign(static_cast<size_t>(groups * pairs * 2 * kWide), 0);
  for (int p = 0; p < wanted; ++p) {
    const int g = p / kWide, i = p % kWide;
    const int begin = from.begin(p) - from.first() - wide_begins[static_cast<size_t>(g)];
    int16_t* const samples = wide_samples.data() + static_cast<ptrdiff_t>(2 * p);
    samples[0] = static_cast<int16_t>(begin);
    samples[1] = static_cast<int16_t>(begin + 1);
    int16_t* const to = wide_weights.data() + static_cast<ptrdiff_t>((g * pairs * kWide + i) * 2);
    for (int k = 0; k < from.taps(p); ++k) {
      to[k / 2 * 2 * kWide + k % 2] = static_cast<int16_t>(from.weights(p)[k]);
    }
  }
  wide = groups;
}

std::span<const PlaneKernels> plane_kernels() {
  static const PlaneKernels kAll[] = {
#if defined(__x86_64__)
    {"avx512", sum_rows_avx2, sum_places_avx512, to_pixels_avx2},
    {"avx2", sum_rows_avx2, sum_places_avx2, to_pixels_avx2},
#endif
    {"plain", sum_rows_plain, sum_places_plain, to_pixels_plain},
  };
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) return std::span(kAll).subspan(2);
  if (!__builtin_cpu_supports("avx512bw")) return std::span(kAll).subspan(1);
#endif
  return kAll;
}

}  // namespace penstock::image
