#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "penstock/image/image.h"

// Operations on pixels that look at one pixel at a time, and turns.
namespace penstock::image {

// Pillow's grey (ITU-R 601-2) of red, green and blue.
inline uint8_t luma(const uint8_t* rgb) {
  return static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

// Grey of an image with 3 channels or more, in `channels` equal channels (1 or 3); of an image with
// fewer, its first channel.
void to_grey(const ImageView& in, int channels, Image& out);
// A row of pixels of 1, 3 or 4 channels (grey, colours, colours and alpha) in other ones of these.
// Alpha that is not there is opaque.
void to_channels(const uint8_t* in, int in_channels, uint8_t* out, int channels, int pixels);
// Columns become rows.
void transpose(const ImageView& in, Image& out);
// A row's pixels in the opposite order.
void mirror_row(const uint8_t* in, uint8_t* out, int pixels, int pixel_bytes);
// Channels of a row, each into its own plane of the result: `to` is its first pixel in plane 0.
template <class T>  // uint8_t, float
void separate_row(const T* in, T* to, size_t plane, int pixels, int channels);

// (x - mean) / std in float32, the same bits on every machine. Immutable.
class Normalization {
 public:
  // One number each, or one for each channel. REQUIRED: equally many, none of std is 0.
  Normalization(std::vector<float> mean, std::vector<float> std);

  size_t channels() const { return mean_.size(); }
  void row(const uint8_t* in, float* to, int pixels, int channels) const;
  void row(const float* in, float* to, int pixels, int channels) const;
  // The same, as separate_row.
  void separate_row(const uint8_t* in, float* to, size_t plane, int pixels, int channels) const;
  void separate_row(const float* in, float* to, size_t plane, int pixels, int channels) const;

 private:
  float table(int channel, uint8_t value) const {
    return table_[(channels() == 1 ? 0 : static_cast<size_t>(channel)) * 256 + value];
  }

  float normalized(int channel, float value) const {
    const size_t place = channels() == 1 ? 0 : static_cast<size_t>(channel);
    return (value - mean_[place]) / std_[place];
  }

  std::vector<float> mean_, std_;
  std::vector<float> tile_mean_, tile_std_;  // repeated until vectors of any width divide them
  std::vector<float> table_;                 // the result of each value of each channel
};
using NormalizationRef = std::shared_ptr<const Normalization>;

}  // namespace penstock::image
