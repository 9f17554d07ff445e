#include "penstock/image/plane_excess.h"

#include <algorithm>
#include <cstdlib>

#include "penstock/image/plane_vectors.h"

namespace penstock::image {
namespace {

constexpr int kHalfLevel = 8;  // in units of 1/16

// Distances from grey are multiplied with a little more than the matrix has, by halves.
bool segment_beyond(Rows y, int across, Rows cb, Rows cr, int first) {
  const auto half = [](int a) { return (a + 1) / 2; };
  for (int i = first; i < first + kSegment; ++i) {
    int dark = 255, bright = 0;
    for (const uint8_t* row : y) {
      for (int x = across * i; x < across * (i + 1); ++x) {
        dark = std::min<int>(dark, row[x]);
        bright = std::max<int>(bright, row[x]);
      }
    }
    int least[2] = {255, 255}, most[2] = {0, 0};
    for (size_t r = 0; r < cb.size(); ++r) {
      for (int x = i - 1; x <= i + 1; ++x) {
        least[0] = std::min<int>(least[0], cb[r][x]);
        most[0] = std::max<int>(most[0], cb[r][x]);
        least[1] = std::min<int>(least[1], cr[r][x]);
        most[1] = std::max<int>(most[1], cr[r][x]);
      }
    }
    int up[3], off[3];  // how far red, green and blue may be above and below the grey
    const int cb_up = std::max(most[0] - 128, 0), cb_off = std::max(128 - least[0], 0);
    const int cr_up = std::max(most[1] - 128, 0), cr_off = std::max(128 - least[1], 0);
    up[0] = cr_up + half(cr_up);
    off[0] = cr_off + half(cr_off);
    up[1] = half(half(cb_off)) + half(half(half(cb_off))) + half(cr_off) + half(half(cr_off));
    off[1] = half(half(cb_up)) + half(half(half(cb_up))) + half(cr_up) + half(half(cr_up));
    up[2] = cb_up + half(cb_up) + half(half(cb_up)) + half(half(half(cb_up)));
    off[2] = cb_off + half(cb_off) + half(half(cb_off)) + half(half(half(cb_off)));
    const int above = std::max({up[0], up[1], up[2]});
    const int below = std::max({off[0], off[1], off[2]});
    if (std::max(bright - 1, 0) + above >= 255 || std::min(dark + 1, 255) - below <= 0) return true;
  }
  return false;
}

void beyond_plain(Rows y, int across, Rows cb, Rows cr, int segments, uint8_t* flags) {
  for (int s = 0; s < segments; ++s) flags[s] = segment_beyond(y, across, cb, cr, s * kSegment);
}

// Cb or Cr of the pixels of a segment, minus 128, in units of 1/16.
void colours_plain(const uint8_t* near, const uint8_t* far, int across, bool smooth, int* to) {
  constexpr int kZero = 128 * 16;
  // Between the two rows, in units of 1/4.
  const auto between = [&](int i) { return smooth ? 3 * near[i] + far[i] : 4 * near[i]; };
  for (int i = 0; i < kSegment; ++i) {
    if (across == 1) {
      to[i] = 4 * between(i) - kZero;
    } else {
      to[2 * i] = 3 * between(i) + between(smooth ? i - 1 : i) - kZero;
      to[2 * i + 1] = 3 * between(i) + between(smooth ? i + 1 : i) - kZero;
    }
  }
}

int excess_plain(const uint8_t* y, const ColourRows& rows, int across, bool smooth,
                 int16_t* const* to) {
  int cb[2 * kSegment], cr[2 * kSegment], changed = 0;
  colours_plain(rows.near_cb, rows.far_cb, across, smooth, cb);
  colours_plain(rows.near_cr, rows.far_cr, across, smooth, cr);
  for (int i = 0; i < kSegment * across; ++i) {
    const int grey = 16 * y[i];
    const int colours[3] = {
        grey + cr[i] + rounded_product(cr[i], kRedCr),
        grey - rounded_product(cb[i], kGreenCb) - rounded_product(cr[i], kGreenCr),
        grey + cb[i] + rounded_product(cb[i], kBlueCb)};
    for (int c = 0; c < 3; ++c) {
      int excess = std::clamp(colours[c], 0, 255 * 16) - colours[c];
      if (std::abs(excess) < kHalfLevel) excess = 0;
      to[c][i] = static_cast<int16_t>(8 * excess);
      if (excess != 0) changed |= 1 << c;
    }
  }
  return changed;
}

void add_changed_plain(const int16_t* numbers, const uint8_t* changed, int colour, int segments,
                       int pixels, int weight, int16_t* sums) {
  for (int i = 0; i < segments * pixels; ++i) {
    if ((changed[i / pixels] >> colour & 1) == 0) continue;
    sums[i] = static_cast<int16_t>(sums[i] + rounded_product(numbers[i], weight >> 1));
  }
}

#if defined(__x86_64__)
// The least and greatest of each column.
struct Extremes {
  __m256i least, most;
};
PENSTOCK_AVX2_PART Extremes extremes_of(Rows rows, ptrdiff_t from) {
  Extremes all{load(rows[0] + from), load(rows[0] + from)};
  for (const uint8_t* row : rows.subspan(1)) {
    const __m256i values = load(row + from);
    all.least = _mm256_min_epu8(all.least, values);
    all.most = _mm256_max_epu8(all.most, values);
  }
  return all;
}

// The extremes of each sample's column and those beside it, as distances below and above grey.
struct Distances {
  __m128i off, up;
};
PENSTOCK_AVX2_PART Distances distances_of(Rows rows, ptrdiff_t first) {
  const Extremes columns = extremes_of(rows, first - 8);
  const __m128i least[2] = {_mm256_castsi256_si128(columns.least),
                            _mm256_extracti128_si256(columns.least, 1)};
  const __m128i most[2] = {_mm256_castsi256_si128(columns.most),
                           _mm256_extracti128_si256(columns.most, 1)};
  const __m128i grey = _mm_set1_epi8(static_cast<char>(0x80));
  const __m128i lowest = _mm_min_epu8(
      _mm_min_epu8(_mm_alignr_epi8(least[1], least[0], 7), _mm_alignr_epi8(least[1], least[0], 8)),
      _mm_alignr_epi8(least[1], least[0], 9));
  const __m128i highest = _mm_max_epu8(
      _mm_max_epu8(_mm_alignr_epi8(most[1], most[0], 7), _mm_alignr_epi8(most[1], most[0], 8)),
      _mm_alignr_epi8(most[1], most[0], 9));
  return {_mm_subs_epu8(grey, lowest), _mm_subs_epu8(highest, grey)};
}

PENSTOCK_AVX2_PART __m128i half(__m128i a) { return _mm_avg_epu8(a, _mm_setzero_si128()); }

// How far red, green or blue may be on one side of the grey: the farthest. `blue`, `red`: the
// distances of Cb and Cr on that side; `not_blue`, `not_red`: on the other.
PENSTOCK_AVX2_PART __m128i farthest(__m128i blue, __m128i red, __m128i not_blue, __m128i not_red) {
  const __m128i blue_2 = half(blue), blue_4 = half(blue_2), blue_8 = half(blue_4);
  const __m128i other_4 = half(half(not_blue)), other_8 = half(other_4);
  const __m128i red_2 = half(not_red), red_4 = half(red_2);
  const __m128i of_red = _mm_adds_epu8(red, half(red));
  const __m128i of_green =
      _mm_adds_epu8(_mm_adds_epu8(other_4, other_8), _mm_adds_epu8(red_2, red_4));
  const __m128i of_blue = _mm_adds_epu8(_mm_adds_epu8(blue, blue_2), _mm_adds_epu8(blue_4, blue_8));
  return _mm_max_epu8(_mm_max_epu8(of_red, of_green), of_blue);
}

PENSTOCK_AVX2 bool segment_beyond_avx2(Rows y, int across, Rows cb, Rows cr, ptrdiff_t first) {
  const __m128i one = _mm_set1_epi8(1);
  const Extremes columns = extremes_of(y, first * across);
  __m128i bright = _mm256_castsi256_si128(columns.most);
  __m128i dark = _mm256_castsi256_si128(columns.least);
  if (across == 2) {  // of two columns each
    const __m256i right_most = _mm256_srli_epi16(columns.most, 8);
    const __m256i right_least = _mm256_srli_epi16(columns.least, 8);
    const __m256i most =
        _mm256_and_si256(_mm256_max_epu8(columns.most, right_most), _mm256_set1_epi16(0xFF));
    const __m256i least =
        _mm256_and_si256(_mm256_min_epu8(columns.least, right_least), _mm256_set1_epi16(0xFF));
    bright = _mm_packus_epi16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    dark = _mm_packus_epi16(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1));
  }
  const Distances b = distances_of(cb, first), r = distances_of(cr, first);
  const __m128i high =
      _mm_adds_epu8(_mm_subs_epu8(bright, one), farthest(b.up, r.up, b.off, r.off));
  const __m128i low = _mm_subs_epu8(_mm_adds_epu8(dark, one), farthest(b.off, r.off, b.up, r.up));
  const __m128i hits = _mm_or_si128(_mm_cmpeq_epi8(high, _mm_set1_epi8(-1)),
                                    _mm_cmpeq_epi8(low, _mm_setzero_si128()));
  return _mm_movemask_epi8(hits) != 0;
}

PENSTOCK_AVX2 void beyond_avx2(Rows y, int across, Rows cb, Rows cr, int segments, uint8_t* flags) {
  for (int s = 0; s < segments; ++s) {
    flags[s] = segment_beyond_avx2(y, across, cb, cr, s * kSegment);
  }
}

// Cb or Cr between two rows, in units of 1/4.
template <bool kSmooth>
PENSTOCK_AVX2_PART __m256i between(const uint8_t* near, const uint8_t* far) {
  const __m256i a = _mm256_cvtepu8_epi16(load_half(near));
  if (!kSmooth) return _mm256_slli_epi16(a, 2);
  const __m256i b = _mm256_cvtepu8_epi16(load_half(far));
  return _mm256_add_epi16(_mm256_add_epi16(a, b), _mm256_slli_epi16(a, 1));
}

// As colours_plain: `to` is a register for each sixteen pixels.
template <int kAcross, bool kSmooth>
PENSTOCK_AVX2_PART void colours_avx2(const uint8_t* near, const uint8_t* far, __m256i* to) {
  const __m256i zero = _mm256_set1_epi16(128 * 16);
  const __m256i here = between<kSmooth>(near, far);
  if (kAcross == 1) {
    to[0] = _mm256_sub_epi16(_mm256_slli_epi16(here, 2), zero);
    return;
  }
  const __m256i three = _mm256_sub_epi16(_mm256_add_epi16(here, _mm256_slli_epi16(here, 1)), zero);
  const __m256i even = _mm256_add_epi16(three, kSmooth ? between<true>(near - 1, far - 1) : here);
  const __m256i odd = _mm256_add_epi16(three, kSmooth ? between<true>(near + 1, far + 1) : here);
  const __m256i a = _mm256_unpacklo_epi16(even, odd), b = _mm256_unpackhi_epi16(even, odd);
  to[0] = _mm256_permute2x128_si256(a, b, 0x20);
  to[1] = _mm256_permute2x128_si256(a, b, 0x31);
}

// Stores what cutting off adds to sixteen values of a colour, and returns it.
PENSTOCK_AVX2_PART __m256i store_excess(__m256i colour, int16_t* to) {
  const __m256i inside = _mm256_min_epi16(_mm256_max_epi16(colour, _mm256_setzero_si256()),
                                          _mm256_set1_epi16(255 * 16));
  const __m256i all = _mm256_sub_epi16(inside, colour);
  const __m256i excess = _mm256_and_si256(
      all, _mm256_cmpgt_epi16(_mm256_abs_epi16(all), _mm256_set1_epi16(kHalfLevel - 1)));
  store(to, _mm256_slli_epi16(excess, 3));
  return excess;
}

template <int kAcross, bool kSmooth>
PENSTOCK_AVX2 int excess_of_avx2(const uint8_t* y, const ColourRows& rows, int16_t* const* to) {
  const __m256i red_cr = _mm256_set1_epi16(kRedCr), green_cb = _mm256_set1_epi16(kGreenCb);
  const __m256i green_cr = _mm256_set1_epi16(kGreenCr), blue_cb = _mm256_set1_epi16(kBlueCb);
  __m256i cb[2], cr[2], any[3];
  colours_avx2<kAcross, kSmooth>(rows.near_cb, rows.far_cb, cb);
  colours_avx2<kAcross, kSmooth>(rows.near_cr, rows.far_cr, cr);
  for (__m256i& changed : any) changed = _mm256_setzero_si256();
  for (int i = 0; i < kAcross; ++i) {
    const __m256i grey = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load_half(y + 16 * i)), 4);
    const __m256i b = cb[i], r = cr[i];
    const __m256i red = _mm256_add_epi16(_mm256_add_epi16(grey, r), _mm256_mulhrs_epi16(r, red_cr));
    const __m256i green = _mm256_sub_epi16(_mm256_sub_epi16(grey, _mm256_mulhrs_epi16(b, green_cb)),
                                           _mm256_mulhrs_epi16(r, green_cr));
    const __m256i blue =
        _mm256_add_epi16(_mm256_add_epi16(grey, b), _mm256_mulhrs_epi16(b, blue_cb));
    any[0] = _mm256_or_si256(any[0], store_excess(red, to[0] + 16 * i));
    any[1] = _mm256_or_si256(any[1], store_excess(green, to[1] + 16 * i));
    any[2] = _mm256_or_si256(any[2], store_excess(blue, to[2] + 16 * i));
  }
  int changed = 0;
  for (int c = 0; c < 3; ++c) changed |= _mm256_testz_si256(any[c], any[c]) == 0 ? 1 << c : 0;
  return changed;
}

PENSTOCK_AVX2 int excess_avx2(const uint8_t* y, const ColourRows& rows, int across, bool smooth,
                              int16_t* const* to) {
  if (across == 1) {
    return smooth ? excess_of_avx2<1, true>(y, rows, to) : excess_of_avx2<1, false>(y, rows, to);
  }
  return smooth ? excess_of_avx2<2, true>(y, rows, to) : excess_of_avx2<2, false>(y, rows, to);
}

PENSTOCK_AVX2 void add_changed_avx2(const int16_t* numbers, const uint8_t* changed, int colour,
                                    int segments, int pixels, int weight, int16_t* sums) {
  const __m256i half = _mm256_set1_epi16(static_cast<int16_t>(weight >> 1));
  for (int s = 0; s < segments; ++s, numbers += pixels, sums += pixels) {
    if ((changed[s] >> colour & 1) == 0) continue;
    for (int i = 0; i < pixels; i += 16) {
      store(sums + i,
            _mm256_add_epi16(load(sums + i), _mm256_mulhrs_epi16(load(numbers + i), half)));
    }
  }
}
#endif

}  // namespace

std::span<const ExcessKernels> excess_kernels() {
  static const ExcessKernels kAll[] = {
#if defined(__x86_64__)
    {"avx2", beyond_avx2, excess_avx2, add_changed_avx2},
#endif
    {"plain", beyond_plain, excess_plain, add_changed_plain},
  };
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) return std::span(kAll).subspan(1);
#endif
  return kAll;
}

}  // namespace penstock::image
