#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/image/decoder.h"

namespace penstock::image {

// Decodes BMPs: palettes of 1, 4 and 8 bits, colours of 16, 24 and 32 bits, with masks or without,
// from the bottom up or from the top down; run lengths of 4 and 8 bits.
//
// Microsoft, "Bitmap Storage" (BITMAPFILEHEADER, BITMAPCOREHEADER, BITMAPINFOHEADER to
// BITMAPV5HEADER), "Bitmap Compression".
class BmpReader : public Decoder {
 public:
  void open(std::span<const std::byte> bytes, const DecodeOptions& options) override;
  int width() const override { return width_; }
  int height() const override { return height_; }
  void read(int x0, int y0, int x1, int y1, RowTaker& taker) override;

 private:
  using Rgba = std::array<uint8_t, 4>;
  // A colour's bits of a pixel: `most` of them after the shift.
  struct Mask {
    uint32_t shift = 0, most = 0;
  };
  [[noreturn]] void fail(const std::string& what, size_t at) const;
  uint32_t number(size_t at, size_t bytes) const;  // throws behind the end
  void set_masks(const std::array<uint32_t, 4>& masks);
  void read_palette(size_t at, size_t entry, size_t entries);
  Rgba pixel(const uint8_t* row, int x) const;
  // Of run lengths: places in the palette, a byte each, by rows in the order of the file.
  void expand();

  std::span<const std::byte> bytes_;
  int channels_ = 3;
  int width_ = 0, height_ = 0;
  bool bottom_up_ = true, runs_ = false, partial_ = false;
  uint32_t bits_ = 0;
  size_t pixels_ = 0, stride_ = 0;  // bytes
  std::array<Rgba, 256> palette_;
  std::array<Mask, 4> masks_;
  std::vector<uint8_t> colours_, row_, expanded_;
};

}  // namespace penstock::image
