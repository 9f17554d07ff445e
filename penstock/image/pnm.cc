#include <cmath>
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

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

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

}  // namespace

void PnmReader::fail(const std::string& what) const {
  fail_damaged(in_channels_ == 1 ? "PGM" : "PPM", what, at_, bytes_.size());
}

void PnmReader::skip_blank() {
  bool comment = false;
  for (; at_ < bytes_.size(); ++at_) {
    const char c = at(at_);
    if (c == '#') comment = true;
    if (!comment && !is_blank(c)) return;
    if (c == '\n' || c == '\r') comment = false;
  }
}

uint32_t PnmReader::next_number() {
  constexpr uint32_t kMaxNumber = 1'000'000'000;
  skip_blank();
  if (at_ == bytes_.size()) fail("it is cut off");
  if (!is_digit(at(at_))) fail("there is no number");
  uint32_t number = 0;
  for (; at_ < bytes_.size() && is_digit(at(at_)); ++at_) {
    number = number * 10 + static_cast<uint32_t>(at(at_) - '0');
    if (number > kMaxNumber) fail("a number is too large");
  }
  return number;
}

void PnmReader::open(std::span<const std::byte> bytes, const DecodeOptions& options) {
  bytes_ = bytes;
  partial_ = options.partial;
  channels_ = options.channels;
  const char kind = at(1);
  text_ = kind == '2' || kind == '3';
  in_channels_ = kind == '2' || kind == '5' ? 1 : 3;
  at_ = 2;
  const uint64_t width = next_number(), height = next_number();
  if (!decodable(width, height)) fail(claim_beyond_limit(width, height));
  width_ = static_cast<int>(width);
  height_ = static_cast<int>(height);
  most_ = next_number();
  if (most_ == 0 || most_ > 0xFFFF) {
    fail("its greatest value is " + std::to_string(most_) + ", not 1 to 65535");
  }
  if (at_ == bytes.size()) fail("it is cut off");
  if (!is_blank(at(at_))) fail("its header does not end with a blank");
  ++at_;
  // A value of a text has a digit and, but for the last one, a blank.
  const uint64_t values = width * height * static_cast<uint64_t>(in_channels_);
  const uint64_t needed = text_ ? 2 * values - 1 : most_ > 255 ? 2 * values : values;
  if (!partial_ && needed > bytes.size() - at_) {
    fail("it is cut off, or its header lies: " + std::to_string(width) + " x " +
         std::to_string(height) + " pixels are " + (text_ ? "at least " : "") +
         std::to_string(needed) + " bytes");
  }
  scaled_.resize(size_t{most_} + 1);
  for (size_t i = 0; i < scaled_.size(); ++i) {
    scaled_[i] = static_cast<uint8_t>(std::nearbyint(static_cast<double>(i) / most_ * 255));
  }
}

uint8_t PnmReader::next_value() {
  uint32_t value;
  if (text_) {
    value = next_number();
  } else {
    value = static_cast<uint32_t>(bytes_[at_++]);
    if (most_ > 255) value = value << 8 | static_cast<uint32_t>(bytes_[at_++]);
  }
  if (value > most_) {
    fail("a value of " + std::to_string(value) + " above the greatest one, " +
         std::to_string(most_));
  }
  return scaled_[value];
}

// Null: the row is not all there, and a part was asked for.
const uint8_t* PnmReader::next_row() {
  if (!text_) {
    const size_t bytes = values_.size() * (most_ > 255 ? 2 : 1);
    if (at_ > bytes_.size() || bytes_.size() - at_ < bytes) return nullptr;
    if (most_ == 255) {
      at_ += bytes;
      return reinterpret_cast<const uint8_t*>(bytes_.data()) + at_ - bytes;
    }
  }
  for (uint8_t& value : values_) {
    if (text_ && partial_) {
      skip_blank();
      if (at_ == bytes_.size()) return nullptr;
    }
    value = next_value();
  }
  return values_.data();
}

void PnmReader::read(int x0, int y0, int x1, int y1, RowTaker& taker) {
  values_.resize(static_cast<size_t>(width_) * static_cast<size_t>(in_channels_));
  row_.resize(static_cast<size_t>(x1 - x0) * static_cast<size_t>(channels_));
  // A text is read from its beginning to its end, for damage anywhere.
  if (!text_) at_ += values_.size() * static_cast<size_t>(y0) * (most_ > 255 ? 2 : 1);
  for (int y = text_ ? 0 : y0; y < (text_ ? height_ : y1); ++y) {
    const uint8_t* row = next_row();
    if (y < y0 || y >= y1) continue;
    if (row == nullptr) {
      row_.assign(row_.size(), 0);
    } else {
      to_channels(row + x0 * in_channels_, in_channels_, row_.data(), channels_, x1 - x0);
    }
    taker.take(row_.data());
  }
}

std::unique_ptr<Decoder> pnm_decoder() { return std::make_unique<PnmReader>(); }

}  // namespace penstock::image
