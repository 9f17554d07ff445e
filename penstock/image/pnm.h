#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/image/decoder.h"

namespace penstock::image {

// Decodes PGMs and PPMs, as text or in binary (P2, P3, P5, P6), of up to 16 bits. Values are scaled
// to 0 to 255, as in Pillow.
//
// The Netpbm manual, "pgm" and "ppm". Of several images in a file the first one is decoded.
class PnmReader : public Decoder {
 public:
  void open(std::span<const std::byte> bytes, const DecodeOptions& options) override;
  int width() const override { return width_; }
  int height() const override { return height_; }
  void read(int x0, int y0, int x1, int y1, RowTaker& taker) override;

 private:
  [[noreturn]] void fail(const std::string& what) const;
  char at(size_t i) const { return static_cast<char>(bytes_[i]); }
  void skip_blank();
  uint32_t next_number();
  uint8_t next_value();
  const uint8_t* next_row();

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool partial_ = false, text_ = false;
  int channels_ = 3, in_channels_ = 3;
  int width_ = 0, height_ = 0;
  uint32_t most_ = 255;
  std::vector<uint8_t> scaled_;  // what each value becomes
  std::vector<uint8_t> values_, row_;
};

}  // namespace penstock::image
