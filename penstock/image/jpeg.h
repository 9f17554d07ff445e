#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "penstock/image/image.h"

namespace penstock::image {

struct JpegState;

// Decodes JPEGs by libjpeg-turbo, of each only the rows and columns that are wanted. Pixels equal
// those of a whole decoding with the accurate DCT and smooth upsampling, as Pillow decodes. Grey,
// YCbCr, RGB, CMYK and YCCK; baseline, progressive and arithmetic coded; 8 bits. One thread.
//
// Error kDataLoss, operation "image.decode", with the byte: no JPEG, cut off, a header that claims
// more pixels than kMaxPixels or than its bytes can hold, more scans than kMaxScans, bytes that
// libjpeg finds corrupt. Extra bytes in front of a marker are accepted, as Pillow does. Nothing is
// in use after an error.
class JpegReader {
 public:
  static constexpr int kMaxScans = 256;

  JpegReader();
  ~JpegReader();
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  // Reads the header. `channels`: 1, 3 or 4 (opaque alpha). `fast`: a less accurate DCT, and
  // colours without smoothing. The bytes stay valid until the last read().
  void open(std::span<const std::byte> bytes, int channels, bool fast);
  int width() const;
  int height() const;
  // The image becomes 1/denominator as large, rounded up: 1, 2, 4 or 8. Before read().
  void set_scale(int denominator);
  // Columns [x0, x1) of rows [y0, y1), once for each open().
  void read(int x0, int y0, int x1, int y1, RowTaker& taker);

 private:
  std::unique_ptr<JpegState> state_;
};

}  // namespace penstock::image
