#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "penstock/image/decoder.h"
#include "penstock/image/planes.h"

namespace penstock::image {

struct JpegState;

// Decodes JPEGs by libjpeg-turbo, of each only the rows and columns that are wanted. Pixels equal
// those of a whole decoding with the accurate DCT and smooth upsampling, as Pillow decodes. Grey,
// YCbCr, RGB, CMYK and YCCK; baseline, progressive and arithmetic coded; 8 bits.
//
// More scans than kMaxScans are damage. Extra bytes in front of a marker are not, as in Pillow.
class JpegReader : public Decoder {
 public:
  static constexpr int kMaxScans = 256;

  JpegReader();
  ~JpegReader() override;

  void open(std::span<const std::byte> bytes, const DecodeOptions& options) override;
  int width() const override;
  int height() const override;
  int orientation() const override;
  // The image becomes 1/denominator as large, rounded up: 1, 2, 4 or 8. Before read().
  void set_scale(int denominator);
  void read(int x0, int y0, int x1, int y1, RowTaker& taker) override;

  // How the planes are stored, at the scale that was set: of grey and YCbCr, of which Cb and Cr
  // have all, or half, of the columns and rows. Nothing: another kind of JPEG. After open().
  std::optional<PlaneLayout> planes() const;
  // Bands [first, end) of the planes, instead of read(). REQUIRED: planes().
  void read_planes(int first, int end, PlaneSink& sink);

 private:
  std::unique_ptr<JpegState> state_;
};

}  // namespace penstock::image
