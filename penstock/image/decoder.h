#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "penstock/image/image.h"

namespace penstock::image {

struct DecodeOptions {
  int channels = 3;  // 1, 3 or 4
  // Of JPEGs: a less accurate DCT, colours without smoothing, and a smaller image decoded where
  // the image is resized to that or less. Where it is made smaller, averages of colours beyond
  // black and white are cut off, not the colours. Of WebPs: colours without smoothing.
  bool fast = false;
  bool exif = true;  // images are turned as their Exif orientation says
  // Of a file that is cut off behind its header, the pixels that are there. The others are 0, or
  // what libjpeg makes of missing data.
  bool partial = false;
};

// A decoder of one format. One thread.
//
// Error kDataLoss, operation "image.decode", with the byte: another format, cut off (save with
// options.partial), a header that claims more pixels than kMaxPixels or than the bytes can hold,
// corrupt bytes. Nothing is in use after an error.
class Decoder {
 public:
  Decoder() = default;
  virtual ~Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Reads the header. The bytes stay valid until the last read().
  virtual void open(std::span<const std::byte> bytes, const DecodeOptions& options) = 0;
  virtual int width() const = 0;
  virtual int height() const = 0;
  virtual int orientation() const { return 1; }  // Exif's, 1 to 8
  // Columns [x0, x1) of rows [y0, y1), once for each open().
  virtual void read(int x0, int y0, int x1, int y1, RowTaker& taker) = 0;
};

// The decoders of the formats; of JPEGs: JpegReader.
std::unique_ptr<Decoder> bmp_decoder();
std::unique_ptr<Decoder> gif_decoder();
std::unique_ptr<Decoder> png_decoder();
std::unique_ptr<Decoder> pnm_decoder();  // PGM and PPM
std::unique_ptr<Decoder> webp_decoder();

// For decoders. `format`: "BMP".
[[noreturn]] void fail_damaged(const char* format, const std::string& what, size_t at, size_t size);
// Whether a header's claim is 1 to kMaxPixels pixels, and texts on claims that are refused.
bool decodable(uint64_t width, uint64_t height);
std::string claim_beyond_limit(uint64_t width, uint64_t height);
std::string claim_beyond_bytes(uint64_t width, uint64_t height);

}  // namespace penstock::image
