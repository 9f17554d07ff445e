#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "penstock/image/decoder.h"

namespace penstock::image {

struct PngState;

// Decodes PNGs by libpng: all colour types and depths, interlaced or not. Of 16 bits the upper 8
// count, as in Pillow. With 3 channels alpha is left out, with 1 colours become grey.
//
// A wrong checksum of any chunk is damage, and so is data that goes on behind the last row: no more
// is inflated than the pixels need, and some megabytes. Compressed texts are not inflated.
class PngReader : public Decoder {
 public:
  PngReader();
  ~PngReader() override;

  void open(std::span<const std::byte> bytes, const DecodeOptions& options) override;
  int width() const override;
  int height() const override;
  int orientation() const override;
  void read(int x0, int y0, int x1, int y1, RowTaker& taker) override;

 private:
  std::unique_ptr<PngState> state_;
};

}  // namespace penstock::image
