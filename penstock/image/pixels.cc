#include "penstock/image/pixels.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace penstock::image {
namespace {

template <int kPixel>
void transpose_of(const ImageView& in, Image& out) {
  constexpr int kTile = 16;  // a tile of both images is in the cache
  for (int y0 = 0; y0 < in.height; y0 += kTile) {
    for (int x0 = 0; x0 < in.width; x0 += kTile) {
      for (int x = x0; x < std::min(x0 + kTile, in.width); ++x) {
        uint8_t* to = out.row(x) + y0 * kPixel;
        for (int y = y0; y < std::min(y0 + kTile, in.height); ++y, to += kPixel) {
          std::memcpy(to, in.row(y) + x * kPixel, kPixel);
        }
      }
    }
  }
}

void transpose_any(const ImageView& in, Image& out) {
  const auto pixel = static_cast<size_t>(in.pixel_bytes());
  for (int x = 0; x < in.width; ++x) {
    for (int y = 0; y < in.height; ++y) {
      std::memcpy(out.row(x) + static_cast<size_t>(y) * pixel,
                  in.row(y) + static_cast<size_t>(x) * pixel, pixel);
    }
  }
}

#define PENSTOCK_PIXELS_PART __attribute__((always_inline)) inline

PENSTOCK_PIXELS_PART void normalize_values(const uint8_t* __restrict in, float* __restrict to,
                                           size_t n, const float* __restrict mean,
                                           const float* __restrict std) {
  for (size_t i = 0; i < n; ++i) to[i] = (static_cast<float>(in[i]) - mean[i]) / std[i];
}

PENSTOCK_PIXELS_PART void normalize_row(const uint8_t* in, float* to, size_t n, const float* mean,
                                        const float* std, size_t tile) {
  for (size_t i = 0; i < n; i += tile) {
    normalize_values(in + i, to + i, std::min(tile, n - i), mean, std);
  }
}

// All that is compiled for one instruction set. A difference and a quotient have the same bits in
// all of them.
#define PENSTOCK_PIXELS_SET(name, attribute)                                                 \
  attribute void normalize_##name(const uint8_t* in, float* to, size_t n, const float* mean, \
                                  const float* std, size_t tile) {                           \
    normalize_row(in, to, n, mean, std, tile);                                               \
  }

using NormalizeRow = void (*)(const uint8_t*, float*, size_t, const float*, const float*, size_t);
PENSTOCK_PIXELS_SET(plain, )
#if defined(__x86_64__)
PENSTOCK_PIXELS_SET(avx2, __attribute__((target("avx2"))))
NormalizeRow best_normalize() {
  return __builtin_cpu_supports("avx2") ? normalize_avx2 : normalize_plain;
}
#else
NormalizeRow best_normalize() { return normalize_plain; }
#endif

}  // namespace

void to_grey(const ImageView& in, int channels, Image& out) {
  out.reset(in.width, in.height, channels);
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* from = in.row(y);
    uint8_t* to = out.row(y);
    for (int x = 0; x < in.width; ++x, from += in.channels, to += channels) {
      std::fill_n(to, channels, in.channels >= 3 ? luma(from) : from[0]);
    }
  }
}

void to_channels(const uint8_t* in, int in_channels, uint8_t* out, int channels, int pixels) {
  for (int i = 0; i < pixels; ++i, in += in_channels, out += channels) {
    if (channels == 1) {
      out[0] = in_channels == 1 ? in[0] : luma(in);
      continue;
    }
    for (int c = 0; c < 3; ++c) out[c] = in[in_channels == 1 ? 0 : c];
    if (channels == 4) out[3] = in_channels == 4 ? in[3] : 255;
  }
}

void transpose(const ImageView& in, Image& out) {
  out.reset(in.height, in.width, in.channels, in.value_bytes);
  switch (in.pixel_bytes()) {
    case 1:
      return transpose_of<1>(in, out);
    case 3:
      return transpose_of<3>(in, out);
    case 4:
      return transpose_of<4>(in, out);
    case 12:
      return transpose_of<12>(in, out);
    default:
      return transpose_any(in, out);
  }
}

void mirror_row(const uint8_t* in, uint8_t* out, int pixels, int pixel_bytes) {
  const auto pixel = static_cast<size_t>(pixel_bytes);
  out += pixel * static_cast<size_t>(pixels);
  if (pixel == 3) {
    for (int x = 0; x < pixels; ++x, in += 3) std::memcpy(out -= 3, in, 3);
    return;
  }
  for (int x = 0; x < pixels; ++x, in += pixel) std::memcpy(out -= pixel, in, pixel);
}

template <class T>
void separate_row(const T* in, T* to, size_t plane, int pixels, int channels) {
  for (int c = 0; c < channels; ++c, to += plane) {
    for (int x = 0; x < pixels; ++x) to[x] = in[x * channels + c];
  }
}
template void separate_row(const uint8_t*, uint8_t*, size_t, int, int);
template void separate_row(const float*, float*, size_t, int, int);

Normalization::Normalization(std::vector<float> mean, std::vector<float> std)
    : mean_(std::move(mean)), std_(std::move(std)) {
  constexpr size_t kTimes = 64;
  for (size_t i = 0; i < kTimes; ++i) {
    tile_mean_.insert(tile_mean_.end(), mean_.begin(), mean_.end());
    tile_std_.insert(tile_std_.end(), std_.begin(), std_.end());
  }
  for (size_t c = 0; c < mean_.size(); ++c) {
    for (int value = 0; value < 256; ++value) {
      table_.push_back((static_cast<float>(value) - mean_[c]) / std_[c]);
    }
  }
}

void Normalization::row(const uint8_t* in, float* to, int pixels, int channels) const {
  static const NormalizeRow normalize = best_normalize();
  normalize(in, to, static_cast<size_t>(pixels) * static_cast<size_t>(channels), tile_mean_.data(),
            tile_std_.data(), tile_mean_.size());
}

void Normalization::row(const float* in, float* to, int pixels, int channels) const {
  for (int x = 0; x < pixels; ++x, in += channels, to += channels) {
    for (int c = 0; c < channels; ++c) to[c] = normalized(c, in[c]);
  }
}

void Normalization::separate_row(const float* in, float* to, size_t plane, int pixels,
                                 int channels) const {
  for (int c = 0; c < channels; ++c, to += plane) {
    for (int x = 0; x < pixels; ++x) to[x] = normalized(c, in[x * channels + c]);
  }
}

void Normalization::separate_row(const uint8_t* in, float* to, size_t plane, int pixels,
                                 int channels) const {
  for (int c = 0; c < channels; ++c, to += plane) {
    for (int x = 0; x < pixels; ++x) to[x] = table(c, in[x * channels + c]);
  }
}

}  // namespace penstock::image
