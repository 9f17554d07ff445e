#include "penstock/image/resize.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock::image {
namespace {

constexpr int32_t kHalf = 1 << (AxisWeights::kBits - 1);
// Bytes behind a kept row that may be read.
constexpr size_t kVector = 32;

// A weighted sum of rows: `n` values.
void sum_plain(const uint8_t* const* rows, const int32_t* weights, int taps, uint8_t* to,
               size_t n) {
  constexpr size_t kPart = 64;
  for (size_t begin = 0; begin < n; begin += kPart) {
    int32_t sums[kPart];
    for (int32_t& sum : sums) sum = kHalf;
    const size_t part = std::min(kPart, n - begin);
    for (int k = 0; k < taps; ++k) {
      const uint8_t* __restrict row = rows[k] + begin;
      for (size_t i = 0; i < part; ++i) sums[i] += row[i] * weights[k];
    }
    for (size_t i = 0; i < part; ++i) {
      to[begin + i] = static_cast<uint8_t>(std::clamp(sums[i] >> AxisWeights::kBits, 0, 255));
    }
  }
}

#if defined(__x86_64__)
// The same. A weight is two numbers of 16 bits, its lowest bits and those above: two rows at once
// are multiplied with each, and added. Values are in the order of unpacked registers until they are
// packed.
__attribute__((target("avx2"))) void sum_avx2(const uint8_t* const* rows, const int32_t* weights,
                                              int taps, uint8_t* to, size_t n) {
  constexpr int kShift = 11;
  constexpr int32_t kLow = (1 << kShift) - 1;
  const __m256i zero = _mm256_setzero_si256();
  for (size_t begin = 0; begin < n; begin += kVector) {
    __m256i low[4], high[4];
    for (int i = 0; i < 4; ++i) {
      low[i] = _mm256_set1_epi32(kHalf);
      high[i] = zero;
    }
    for (int k = 0; k < taps; k += 2) {
      // An odd row at the end is taken twice, with a weight of 0.
      const int next = std::min(k + 1, taps - 1);
      const int32_t wa = weights[k], wb = next > k ? weights[next] : 0;
      const __m256i low_weights = _mm256_set1_epi32((wa & kLow) | (wb & kLow) << 16);
      const __m256i high_weights =
          _mm256_set1_epi32(((wa >> kShift) & 0xFFFF) |
                            static_cast<int32_t>(static_cast<uint32_t>(wb >> kShift) << 16));
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k] + begin));
      const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[next] + begin));
      const __m256i first = _mm256_unpacklo_epi8(a, b), second = _mm256_unpackhi_epi8(a, b);
      const __m256i pixels[4] = {
          _mm256_unpacklo_epi8(first, zero), _mm256_unpackhi_epi8(first, zero),
          _mm256_unpacklo_epi8(second, zero), _mm256_unpackhi_epi8(second, zero)};
      for (int i = 0; i < 4; ++i) {
        low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(pixels[i], low_weights));
        high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(pixels[i], high_weights));
      }
    }
    for (int i = 0; i < 4; ++i) {
      low[i] = _mm256_srai_epi32(_mm256_add_epi32(low[i], _mm256_slli_epi32(high[i], kShift)),
                                 AxisWeights::kBits);
    }
    const __m256i values =
        _mm256_packus_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
    if (n - begin >= kVector) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + begin), values);
    } else {
      uint8_t rest[kVector];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(rest), values);
      std::memcpy(to + begin, rest, n - begin);
    }
  }
}
#endif

using SumRows = void (*)(const uint8_t* const*, const int32_t*, int, uint8_t*, size_t);
SumRows best_sum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
  return sum_plain;
}

}  // namespace

void Resizer::begin(const ResizeSpec& spec, RowSink& sink) {
  spec_ = spec;
  sink_ = &sink;
  x_.reset(spec.x, spec.channels);
  y_.reset(spec.y);
  row_ = y_.first_input();
  place_ = 0;
  row_bytes_ = static_cast<size_t>(spec.x.count) * static_cast<size_t>(spec.channels);
  kept_rows_ = y_.most_taps();
  row_stride_ = HorizontalPass::kMargin + row_bytes_ + std::max(HorizontalPass::kMargin, kVector);
  rows_.resize(row_stride_ * static_cast<size_t>(kept_rows_));
  taps_.resize(static_cast<size_t>(kept_rows_));
}

uint8_t* Resizer::kept(int row) {
  return rows_.data() + row_stride_ * static_cast<size_t>(row % kept_rows_) +
         HorizontalPass::kMargin;
}

void Resizer::take(const uint8_t* row) {
  const int number = row_++;
  if (place_ == spec_.y.count || y_.begin(place_) > number) return;
  resize_row(row, kept(number));
  while (place_ < spec_.y.count && y_.begin(place_) + y_.taps(place_) <= row_) give(place_++);
}

void Resizer::resize_row(const uint8_t* row, uint8_t* to) {
  if (spec_.x.identity() && !spec_.flip_x) {
    const int begin = static_cast<int>(spec_.x.begin) + spec_.x.first - x_.axis().first_input();
    std::memcpy(to, row + begin * spec_.channels, row_bytes_);
    return;
  }
  x_.row(row, to, spec_.flip_x);
}

void Resizer::give(int place) {
  static const SumRows sum = best_sum();
  const int y = spec_.flip_y ? spec_.y.count - 1 - place : place;
  uint8_t* to = sink_->row(y);
  const int begin = y_.begin(place), taps = y_.taps(place);
  if (taps == 1 && y_.weights(place)[0] == 1 << AxisWeights::kBits) {
    std::memcpy(to, kept(begin), row_bytes_);
  } else {
    for (int k = 0; k < taps; ++k) taps_[static_cast<size_t>(k)] = kept(begin + k);
    sum(taps_.data(), y_.weights(place), taps, to, row_bytes_);
  }
  sink_->done(y);
}

}  // namespace penstock::image
