#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/image/decoder.h"
#include "penstock/image/pixels.h"

namespace penstock::image {
namespace {

constexpr size_t kFileHeader = 14, kShortHeader = 40;  // the masks follow
// Compressions.
constexpr uint32_t kPlain = 0, kRuns8 = 1, kRuns4 = 2, kMasks = 3, kMasksWithAlpha = 6;
// Compressed images of up to kTrustedPixels may claim more pixels than kMaxPixelsPerByte allows,
// because one colour takes few bytes.
constexpr uint64_t kTrustedPixels = 1 << 24, kMaxPixelsPerByte = 128;

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

}  // namespace

void BmpReader::fail(const std::string& what, size_t at) const {
  fail_damaged("BMP", what, at, bytes_.size());
}

uint32_t BmpReader::number(size_t at, size_t bytes) const {
  if (at > bytes_.size() || bytes_.size() - at < bytes) fail("its header is cut off", at);
  uint32_t value = 0;
  for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint32_t>(bytes_[at + i]);
  return value;
}

void BmpReader::open(std::span<const std::byte> bytes, const DecodeOptions& options) {
  constexpr size_t kOldHeader = 12, kLongest = 124;
  bytes_ = bytes;
  channels_ = options.channels;
  pixels_ = number(10, 4);
  const size_t header = number(kFileHeader, 4);
  const bool old = header == kOldHeader;
  if (!old && (header < kShortHeader || header > kLongest)) {
    fail("its header claims to have " + std::to_string(header) + " bytes", kFileHeader);
  }
  const uint64_t width = number(18, old ? 2 : 4);
  const auto height = old ? int64_t{number(20, 2)} : int64_t{static_cast<int32_t>(number(22, 4))};
  const auto rows = static_cast<uint64_t>(height < 0 ? -height : height);
  if (!decodable(width, rows)) fail(claim_beyond_limit(width, rows), 18);
  width_ = static_cast<int>(width);
  height_ = static_cast<int>(rows);
  bottom_up_ = height > 0;
  bits_ = number(old ? 24 : 28, 2);
  const uint32_t compression = old ? kPlain : number(30, 4);
  if (compression > kMasks && compression != kMasksWithAlpha) {
    fail("it is of compression " + std::to_string(compression) +
             ", and only run lengths are decoded; write it as a PNG",
         30);
  }
  runs_ = compression == kRuns8 || compression == kRuns4;
  partial_ = options.partial;
  if ((bits_ == 16 || bits_ == 32) && !runs_) {
    if (compression == kPlain) {
      set_masks(bits_ == 16 ? std::array<uint32_t, 4>{0x7C00, 0x3E0, 0x1F, 0}
                            : std::array<uint32_t, 4>{0xFF0000, 0xFF00, 0xFF, 0});
    } else {
      // Behind the shortest header there are masks that longer ones have in them.
      const size_t masks = compression == kMasksWithAlpha || header >= 56 ? 4 : 3;
      std::array<uint32_t, 4> values{};
      for (size_t i = 0; i < masks; ++i) values[i] = number(kFileHeader + kShortHeader + 4 * i, 4);
      set_masks(values);
    }
  } else if (runs_ ? bits_ != (compression == kRuns8 ? 8 : 4)
                   : compression != kPlain ||
                         (bits_ != 1 && bits_ != 4 && bits_ != 8 && bits_ != 24)) {
    fail("it has pixels of " + std::to_string(bits_) + " bits", old ? 24 : 28);
  } else if (bits_ <= 8) {
    const size_t most = size_t{1} << bits_;
    const size_t used = old ? 0 : number(46, 4);
    if (used > most) fail("its palette has " + std::to_string(used) + " colours", 46);
    read_palette(kFileHeader + header, old ? 3 : 4, used == 0 ? most : used);
  }
  const uint64_t row_bits = width * bits_;
  stride_ = (row_bits + 31) / 32 * 4;
  const uint64_t needed = stride_ * (rows - 1) + (row_bits + 7) / 8;
  if (pixels_ < kFileHeader + header) fail("its pixels begin within its header", 10);
  if (runs_) {
    const uint64_t claimed = width * rows;
    if (claimed > std::max<uint64_t>(kTrustedPixels, bytes.size() * kMaxPixelsPerByte)) {
      fail(claim_beyond_bytes(width, rows), 18);
    }
    return;
  }
  if (!options.partial && (pixels_ > bytes.size() || bytes.size() - pixels_ < needed)) {
    fail("it is cut off, or its header lies: " + std::to_string(width) + " x " +
             std::to_string(rows) + " pixels are " + std::to_string(needed) + " bytes from byte " +
             std::to_string(pixels_) + " on",
         bytes.size());
  }
}

void BmpReader::set_masks(const std::array<uint32_t, 4>& masks) {
  for (size_t i = 0; i < masks.size(); ++i) {
    const auto shift = static_cast<uint32_t>(masks[i] == 0 ? 0 : std::countr_zero(masks[i]));
    masks_[i] = {shift, masks[i] >> shift};
    if ((uint64_t{masks_[i].most} & (uint64_t{masks_[i].most} + 1)) != 0) {
      fail("the bits of a colour are not side by side", kFileHeader + kShortHeader + 4 * i);
    }
  }
}

void BmpReader::read_palette(size_t at, size_t entry, size_t entries) {
  // Colours that are not there are grey, as in Pillow.
  for (size_t i = 0; i < palette_.size(); ++i) {
    palette_[i].fill(static_cast<uint8_t>(i));
    palette_[i][3] = 255;
  }
  for (size_t i = 0; i < entries; ++i, at += entry) {
    for (size_t c = 0; c < 3; ++c) palette_[i][2 - c] = static_cast<uint8_t>(number(at + c, 1));
  }
}

BmpReader::Rgba BmpReader::pixel(const uint8_t* row, int x) const {
  const auto i = static_cast<size_t>(x);
  if (bits_ == 24) return {row[3 * i + 2], row[3 * i + 1], row[3 * i], 255};
  if (bits_ <= 8) {
    const size_t bit = i * bits_;
    const uint32_t place = row[bit / 8] >> (8 - bits_ - bit % 8) & ((1U << bits_) - 1);
    return palette_[place];
  }
  uint32_t value = 0;
  for (size_t k = bits_ / 8; k-- > 0;) value = value << 8 | row[i * bits_ / 8 + k];
  Rgba rgba{0, 0, 0, 255};
  for (size_t c = 0; c < rgba.size(); ++c) {
    const uint64_t most = masks_[c].most;
    if (most > 0) {
      rgba[c] = static_cast<uint8_t>((uint64_t{value} >> masks_[c].shift & most) * 255 / most);
    }
  }
  return rgba;
}

void BmpReader::expand() {
  constexpr uint8_t kEndOfRow = 0, kEnd = 1, kMove = 2;  // behind a 0
  const auto width = static_cast<size_t>(width_), height = static_cast<size_t>(height_);
  expanded_.assign(width * height, 0);
  size_t at = pixels_, x = 0, y = 0;
  auto next = [&](size_t count) {
    const bool there = at <= bytes_.size() && bytes_.size() - at >= count;
    if (!there && !partial_) fail("its pixels are cut off", bytes_.size());
    return there;
  };
  auto byte = [&] { return static_cast<uint8_t>(bytes_[at++]); };
  // What is beyond the end of a row is left out, as by Pillow.
  auto put = [&](uint8_t place) {
    if (x < width) expanded_[y * width + x++] = place;
  };
  while (y < height && (y + 1 < height || x < width) && next(2)) {
    const uint8_t count = byte(), value = byte();
    if (count > 0) {
      for (size_t i = 0; i < count; ++i) {
        put(bits_ == 8 ? value : i % 2 == 0 ? value >> 4 : value & 15);
      }
    } else if (value == kEndOfRow) {
      x = 0;
      ++y;
    } else if (value == kEnd) {
      return;
    } else if (value == kMove) {
      if (!next(2)) return;
      x += byte();
      y += byte();
    } else {  // so many pixels as they are, in an even number of bytes
      const size_t bytes = (value * bits_ + 7) / 8;
      if (!next(bytes)) return;
      for (size_t i = 0; i < value; ++i) {
        const auto two = static_cast<uint8_t>(bytes_[at + i * bits_ / 8]);
        put(bits_ == 8 ? two : i % 2 == 0 ? two >> 4 : two & 15);
      }
      at += bytes + bytes % 2;
    }
  }
}

void BmpReader::read(int x0, int y0, int x1, int y1, RowTaker& taker) {
  if (runs_) expand();
  const auto wanted = static_cast<size_t>(x1 - x0);
  colours_.resize(wanted * 4);
  row_.resize(wanted * static_cast<size_t>(channels_));
  const size_t row_bytes = (static_cast<size_t>(width_) * bits_ + 7) / 8;
  for (int y = y0; y < y1; ++y) {
    const size_t at = pixels_ + stride_ * static_cast<size_t>(bottom_up_ ? height_ - 1 - y : y);
    if (runs_) {
      const auto file_row = static_cast<size_t>(bottom_up_ ? height_ - 1 - y : y);
      const uint8_t* places = expanded_.data() + file_row * static_cast<size_t>(width_);
      for (int x = x0; x < x1; ++x) {
        const Rgba& rgba = palette_[places[x]];
        std::copy(rgba.begin(), rgba.end(), colours_.data() + static_cast<ptrdiff_t>(x - x0) * 4);
      }
      to_channels(colours_.data(), 4, row_.data(), channels_, x1 - x0);
    } else if (at > bytes_.size() || bytes_.size() - at < row_bytes) {  // a part was asked for
      row_.assign(row_.size(), 0);
    } else {
      const auto* row = reinterpret_cast<const uint8_t*>(bytes_.data()) + at;
      uint8_t* to = colours_.data();
      for (int x = x0; x < x1; ++x, to += 4) {
        const Rgba rgba = pixel(row, x);
        std::copy(rgba.begin(), rgba.end(), to);
      }
      to_channels(colours_.data(), 4, row_.data(), channels_, x1 - x0);
    }
    taker.take(row_.data());
  }
}

std::unique_ptr<Decoder> bmp_decoder() { return std::make_unique<BmpReader>(); }

}  // namespace penstock::image
