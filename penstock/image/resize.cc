#include "penstock/image/resize.h"

#include <algorithm>
#include <cstring>

namespace penstock::image {
namespace {

constexpr int32_t kHalf = 1 << (AxisWeights::kBits - 1);

#define PENSTOCK_RESIZE_PART __attribute__((always_inline)) inline

PENSTOCK_RESIZE_PART uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> AxisWeights::kBits, 0, 255));
}

// A weighted sum of rows: `n` values.
PENSTOCK_RESIZE_PART void sum_rows(const uint8_t* const* rows, const int32_t* weights, int taps,
                                   uint8_t* __restrict to, size_t n, int32_t* __restrict sums) {
  for (size_t i = 0; i < n; ++i) sums[i] = kHalf;
  int k = 0;
  for (; k + 2 < taps; k += 3) {
    const uint8_t* __restrict a = rows[k], * __restrict b = rows[k + 1], * __restrict c = rows[k + 2];
    const int32_t wa = weights[k], wb = weights[k + 1], wc = weights[k + 2];
    for (size_t i = 0; i < n; ++i) sums[i] += a[i] * wa + b[i] * wb + c[i] * wc;
  }
  for (; k < taps; ++k) {
    const uint8_t* __restrict a = rows[k];
    const int32_t wa = weights[k];
    for (size_t i = 0; i < n; ++i) sums[i] += a[i] * wa;
  }
  for (size_t i = 0; i < n; ++i) to[i] = rounded(sums[i]);
}

// All that is compiled for one instruction set; the integers are the same in all of them.
#define PENSTOCK_RESIZE_SET(name, attribute)                                              \
  attribute void sum_##name(const uint8_t* const* rows, const int32_t* weights, int taps, \
                            uint8_t* to, size_t n, int32_t* sums) {                       \
    sum_rows(rows, weights, taps, to, n, sums);                                           \
  }

using SumRows = void (*)(const uint8_t* const*, const int32_t*, int, uint8_t*, size_t, int32_t*);
PENSTOCK_RESIZE_SET(plain, )
#if defined(__x86_64__)
PENSTOCK_RESIZE_SET(avx2, __attribute__((target("avx2"))))
SumRows best_sum() { return __builtin_cpu_supports("avx2") ? sum_avx2 : sum_plain; }
#else
SumRows best_sum() { return sum_plain; }
#endif

}  // namespace

void Resizer::begin(const ResizeSpec& spec, RowSink& sink) {
  spec_ = spec;
  sink_ = &sink;
  x_.reset(spec.x);
  y_.reset(spec.y);
  row_ = y_.first_input();
  place_ = 0;
  row_bytes_ = static_cast<size_t>(spec.x.count) * static_cast<size_t>(spec.channels);
  kept_rows_ = y_.most_taps();
  rows_.resize(row_bytes_ * static_cast<size_t>(kept_rows_));
  taps_.resize(static_cast<size_t>(kept_rows_));
  sums_.resize(row_bytes_);
}

uint8_t* Resizer::kept(int row) {
  return rows_.data() + row_bytes_ * static_cast<size_t>(row % kept_rows_);
}

void Resizer::take(const uint8_t* row) {
  const int number = row_++;
  if (place_ == spec_.y.count || y_.begin(place_) > number) return;
  resize_row(row, kept(number));
  while (place_ < spec_.y.count && y_.begin(place_) + y_.taps(place_) <= row_) give(place_++);
}

void Resizer::resize_row(const uint8_t* row, uint8_t* to) const {
  if (spec_.x.identity() && !spec_.flip_x) {
    const int begin = static_cast<int>(spec_.x.begin) + spec_.x.first - x_.axis().first_input();
    std::memcpy(to, row + begin * spec_.channels, row_bytes_);
    return;
  }
  x_.row(row, to, spec_.channels, spec_.flip_x);
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
    sum(taps_.data(), y_.weights(place), taps, to, row_bytes_, sums_.data());
  }
  sink_->done(y);
}

}  // namespace penstock::image
