#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/image/decoder.h"
#include "penstock/image/pixels.h"

namespace penstock::image {
namespace {

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

}  // namespace

void GifReader::fail(const std::string& what) const {
  fail_damaged("GIF", what, at_, bytes_.size());
}

uint32_t GifReader::number(size_t bytes) {
  if (bytes_.size() - at_ < bytes) fail("it is cut off");
  uint32_t value = 0;
  for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint32_t>(bytes_[at_ + i]);
  at_ += bytes;
  return value;
}

void GifReader::read_palette(uint32_t flags) {
  if ((flags & 0x80) == 0) return;
  const size_t entries = size_t{2} << (flags & 7);
  for (size_t i = 0; i < entries; ++i) {
    for (size_t c = 0; c < 3; ++c) palette_[i][c] = static_cast<uint8_t>(number(1));
  }
}

void GifReader::skip_blocks() {
  while (const uint32_t length = number(1)) {
    if (length > bytes_.size() - at_) fail("it is cut off");
    at_ += length;
  }
}

// Up to the frame's header.
void GifReader::find_frame() {
  constexpr uint32_t kExtension = 0x21, kFrame = 0x2C, kEnd = 0x3B, kControl = 0xF9;
  while (true) {
    switch (number(1)) {
      case kFrame:
        return;
      case kExtension:
        if (number(1) == kControl && at_ + 5 <= bytes_.size() && bytes_[at_] == std::byte{4}) {
          const bool transparent = (bytes_[at_ + 1] & std::byte{1}) != std::byte{0};
          transparent_ = transparent ? static_cast<int>(bytes_[at_ + 4]) : -1;
        }
        skip_blocks();
        break;
      case kEnd:
        --at_;
        fail("it has no image");
      default:
        --at_;
        fail("a block of no known kind");
    }
  }
}

void GifReader::open(std::span<const std::byte> bytes, const DecodeOptions& options) {
  constexpr size_t kSignature = 6;
  // A code of 12 bits stands for at most so many pixels.
  constexpr uint64_t kMostPerByte = uint64_t{kCodes} * 8 / 12;
  bytes_ = bytes;
  partial_ = options.partial;
  channels_ = options.channels;
  transparent_ = -1;
  at_ = 0;
  if (bytes.size() < kSignature) fail("it is cut off");
  if (std::memcmp(bytes.data(), "GIF87a", kSignature) != 0 &&
      std::memcmp(bytes.data(), "GIF89a", kSignature) != 0) {
    fail("it is of no known version");
  }
  at_ = kSignature;
  // Without a palette, and behind its end, colours are grey, as in Pillow.
  for (size_t i = 0; i < palette_.size(); ++i) {
    palette_[i].fill(static_cast<uint8_t>(i));
    palette_[i][3] = 255;
  }
  uint64_t width = number(2), height = number(2);
  const uint32_t flags = number(1);
  number(2);  // the background, which no program shows, and the pixels' shape
  read_palette(flags);
  find_frame();
  left_ = static_cast<int>(number(2));
  top_ = static_cast<int>(number(2));
  const uint64_t frame_width = number(2), frame_height = number(2);
  // A frame may reach beyond the image.
  width = std::max(width, static_cast<uint64_t>(left_) + frame_width);
  height = std::max(height, static_cast<uint64_t>(top_) + frame_height);
  if (!decodable(width, height)) fail(claim_beyond_limit(width, height));
  if (frame_width == 0 || frame_height == 0) fail("its frame has no pixels");
  if (!partial_ && width * height / kMostPerByte > bytes.size()) {
    fail(claim_beyond_bytes(width, height));
  }
  width_ = static_cast<int>(width);
  height_ = static_cast<int>(height);
  frame_width_ = static_cast<int>(frame_width);
  frame_height_ = static_cast<int>(frame_height);
  const uint32_t frame_flags = number(1);
  interlaced_ = (frame_flags & 0x40) != 0;
  read_palette(frame_flags);
  if (transparent_ >= 0) palette_[static_cast<size_t>(transparent_)][3] = 0;
}

// Of the blocks that the codes are in. False behind the last one, and behind the file's end.
bool GifReader::next_byte(uint32_t& byte) {
  if (block_ == 0 && at_ < bytes_.size()) block_ = static_cast<uint32_t>(bytes_[at_++]);
  if (block_ == 0 || at_ == bytes_.size()) return false;
  --block_;
  byte = static_cast<uint32_t>(bytes_[at_++]);
  return true;
}

bool GifReader::next_code(uint32_t bits, uint32_t& code) {
  while (buffered_ < bits) {
    uint32_t byte = 0;
    if (!next_byte(byte)) return false;
    buffer_ |= byte << buffered_;
    buffered_ += 8;
  }
  code = buffer_ & ((1U << bits) - 1);
  buffer_ >>= bits;
  buffered_ -= bits;
  return true;
}

void GifReader::unpack() {
  constexpr uint32_t kNone = kCodes;
  const uint32_t least = number(1);
  if (least < 1 || least > 8) fail("its codes begin with " + std::to_string(least) + " bits");
  const uint32_t clear = 1U << least, end = clear + 1;
  const size_t pixels = places_.size();
  block_ = buffer_ = buffered_ = 0;
  unpacked_ = 0;
  uint32_t next = end + 1, bits = least + 1, previous = kNone, code = 0;
  uint8_t first = 0;  // of the previous code's string
  while (unpacked_ < pixels && next_code(bits, code) && code != end) {
    if (code == clear) {
      next = end + 1;
      bits = least + 1;
      previous = kNone;
      continue;
    }
    // A code that is not there yet stands for the previous string and its own first pixel.
    if (code > next || (code >= clear && previous == kNone) || (code == next && next == kCodes)) {
      fail("a code that stands for nothing");
    }
    size_t begin = string_.size();  // it is found from its end on
    uint32_t from = code;
    if (code == next) {
      string_[--begin] = first;
      from = previous;
    }
    for (; from > end; from = before_[from]) string_[--begin] = last_[from];
    string_[--begin] = first = static_cast<uint8_t>(from);
    if (previous != kNone && next < kCodes) {
      before_[next] = static_cast<uint16_t>(previous);
      last_[next] = first;
      if (++next == 1U << bits && bits < 12) ++bits;
    }
    previous = code;
    const size_t length = std::min(string_.size() - begin, pixels - unpacked_);
    std::memcpy(places_.data() + unpacked_, string_.data() + begin, length);
    unpacked_ += length;
  }
  if (unpacked_ < pixels && !(partial_ && code != end)) {
    fail("its frame ends after " + std::to_string(unpacked_) + " of " + std::to_string(pixels) +
         " pixels");
  }
}

// Where the frame's row y is in the file.
int GifReader::packed_row(int y) const {
  if (!interlaced_) return y;
  const int eighths = (frame_height_ + 7) / 8, fourths = (frame_height_ + 3) / 4;
  if (y % 8 == 0) return y / 8;
  if (y % 8 == 4) return eighths + y / 8;
  if (y % 4 == 2) return fourths + y / 4;
  return (frame_height_ + 1) / 2 + y / 2;
}

void GifReader::read(int x0, int y0, int x1, int y1, RowTaker& taker) {
  const auto frame_width = static_cast<size_t>(frame_width_);
  places_.resize(frame_width * static_cast<size_t>(frame_height_));
  unpack();
  const auto wanted = static_cast<size_t>(x1 - x0);
  colours_.resize(wanted * 4);
  row_.resize(wanted * static_cast<size_t>(channels_));
  const Rgba& around = palette_[static_cast<size_t>(std::max(transparent_, 0))];
  for (int y = y0; y < y1; ++y) {
    const int frame_y = y - top_;
    const bool within = frame_y >= 0 && frame_y < frame_height_;
    const size_t row = within ? static_cast<size_t>(packed_row(frame_y)) * frame_width : 0;
    uint8_t* to = colours_.data();
    for (int x = x0; x < x1; ++x, to += 4) {
      const int frame_x = x - left_;
      const bool inside = within && frame_x >= 0 && frame_x < frame_width_;
      const size_t place = row + static_cast<size_t>(std::max(frame_x, 0));
      Rgba colour = around;
      if (inside) colour = place < unpacked_ ? palette_[places_[place]] : Rgba{};
      std::memcpy(to, colour.data(), 4);
    }
    to_channels(colours_.data(), 4, row_.data(), channels_, x1 - x0);
    taker.take(row_.data());
  }
}

std::unique_ptr<Decoder> gif_decoder() { return std::make_unique<GifReader>(); }

}  // namespace penstock::image
