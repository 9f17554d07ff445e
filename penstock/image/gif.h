#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "penstock/image/decoder.h"

namespace penstock::image {

// Decodes the first frame of GIFs. Around a frame that is smaller than the image is the transparent
// colour, or the palette's first one, as in Pillow. What follows the frame is not read.
//
// CompuServe, "Graphics Interchange Format, Version 89a"; codes of variable length as its appendix
// F has them.
class GifReader : public Decoder {
 public:
  void open(std::span<const std::byte> bytes, const DecodeOptions& options) override;
  int width() const override { return width_; }
  int height() const override { return height_; }
  void read(int x0, int y0, int x1, int y1, RowTaker& taker) override;

 private:
  static constexpr uint32_t kCodes = 4096;
  using Rgba = std::array<uint8_t, 4>;

  [[noreturn]] void fail(const std::string& what) const;
  uint32_t number(size_t bytes);  // the next one; throws behind the end
  void read_palette(uint32_t flags);
  void find_frame();
  void skip_blocks();
  bool next_byte(uint32_t& byte);
  bool next_code(uint32_t bits, uint32_t& code);
  void unpack();
  int packed_row(int y) const;

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool partial_ = false;
  int channels_ = 3;
  int width_ = 0, height_ = 0;
  int left_ = 0, top_ = 0, frame_width_ = 0, frame_height_ = 0;
  bool interlaced_ = false;
  int transparent_ = -1;  // a place in the palette
  std::array<Rgba, 256> palette_;

  // The codes of the frame.
  uint32_t block_ = 0;  // bytes that are left of it
  uint32_t buffer_ = 0, buffered_ = 0;
  std::array<uint16_t, kCodes> before_;
  std::array<uint8_t, kCodes> last_;
  std::array<uint8_t, kCodes> string_;
  std::vector<uint8_t> places_;  // of the frame's pixels in the palette, in the file's order
  size_t unpacked_ = 0;
  std::vector<uint8_t> colours_, row_;
};

}  // namespace penstock::image
