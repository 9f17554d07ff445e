#pragma once

#include <cstddef>
#include <cstdint>

// The planes that a JPEG stores, before they become pixels.
namespace penstock::image {

// Bytes behind the samples of a row, and numbers behind those of a sum, that may be read or
// written.
inline constexpr size_t kPlanePadding = 64;

// Red, green and blue of Y, Cb and Cr (JFIF), in units of 2^-15: of red Cr - 1, of blue Cb - 1.
inline constexpr int kRedCr = 13173, kGreenCb = 11277, kGreenCr = 23401, kBlueCb = 25297;
// A number times such a unit, as _mm256_mulhrs_epi16 rounds it.
constexpr int rounded_product(int a, int b) { return (a * b + 0x4000) >> 15; }

// Luminance (plane 0), and Cb and Cr (planes 1 and 2), which may be stored at half the width and
// height. Luminance has the image's size.
struct PlaneLayout {
  int count = 1;             // 1: luminance alone; 3
  int across = 1, down = 1;  // the pixels that a sample of Cb and Cr covers: 1 or 2
  // Pixels between two samples are 3/4 of the nearer one and 1/4 of the other, in each direction
  // that has fewer samples (libjpeg's "fancy upsampling"). Else they repeat the sample.
  bool smooth = false;
  int width = 0, height = 0;                // of luminance
  int colour_width = 0, colour_height = 0;  // of Cb and Cr
  // Rows of luminance, and of Cb and Cr, that are decoded at once: a band.
  int band_rows = 8, colour_band_rows = 8;
  // Samples that are written for a row, at least its width.
  int written = 0, colour_written = 0;

  bool operator==(const PlaneLayout&) const = default;
};

// Receives planes, band after band.
class PlaneSink {
 public:
  virtual ~PlaneSink() = default;
  // Where row y of a plane is to be written, which may be below the plane's last row.
  virtual uint8_t* row(int plane, int y) = 0;
  virtual void done(int band) = 0;
};

}  // namespace penstock::image
