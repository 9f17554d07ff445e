#include "penstock/image/picture.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "penstock/base/error.h"

namespace penstock::image {
namespace {

// Rows of an image in memory.
class ImageSink : public RowSink {
 public:
  explicit ImageSink(Image& image, int left = 0, int top = 0)
      : image_(image), left_(left), top_(top) {}
  uint8_t* row(int y) override {
    return image_.row(top_ + y) + left_ * image_.view().pixel_bytes();
  }

 private:
  Image& image_;
  int left_, top_;
};

class PlainSink : public RowSink {
 public:
  PlainSink(std::byte* to, size_t stride) : to_(reinterpret_cast<uint8_t*>(to)), stride_(stride) {}
  uint8_t* row(int y) override { return to_ + static_cast<size_t>(y) * stride_; }

 private:
  uint8_t* to_;
  size_t stride_;
};

// Rows that are converted when they are there. T: of their values.
template <class T>
class ConvertingSink : public RowSink {
 public:
  ConvertingSink(std::byte* to, int width, int height, int channels,
                 const Normalization* normalization, bool chw, std::vector<uint8_t>& row)
      : to_(to),
        width_(width),
        channels_(channels),
        pixels_(static_cast<size_t>(width) * static_cast<size_t>(height)),
        normalization_(normalization),
        chw_(chw),
        row_(row) {
    row_.resize(static_cast<size_t>(width) * static_cast<size_t>(channels) * sizeof(T));
  }
  uint8_t* row(int) override { return row_.data(); }
  void done(int y) override {
    const size_t place = static_cast<size_t>(y) * static_cast<size_t>(width_);
    const T* const row = reinterpret_cast<const T*>(row_.data());
    if (normalization_ == nullptr) {
      separate_row(row, reinterpret_cast<T*>(to_) + place, pixels_, width_, channels_);
      return;
    }
    auto* to = reinterpret_cast<float*>(to_);
    if (chw_) {
      normalization_->separate_row(row, to + place, pixels_, width_, channels_);
    } else {
      normalization_->row(row, to + place * static_cast<size_t>(channels_), width_, channels_);
    }
  }

 private:
  std::byte* to_;
  int width_, channels_;
  size_t pixels_;
  const Normalization* normalization_;
  bool chw_;
  std::vector<uint8_t>& row_;
};

// Rows as they are, or mirrored.
class Copying : public RowTaker {
 public:
  Copying(RowSink& sink, int width, int height, int pixel_bytes, bool flip_x, bool flip_y)
      : sink_(sink),
        width_(width),
        height_(height),
        pixel_bytes_(pixel_bytes),
        flip_x_(flip_x),
        flip_y_(flip_y) {}
  void take(const uint8_t* row) override {
    const int y = flip_y_ ? height_ - 1 - taken_ : taken_;
    ++taken_;
    uint8_t* to = sink_.row(y);
    if (flip_x_) {
      mirror_row(row, to, width_, pixel_bytes_);
    } else {
      std::memcpy(to, row, static_cast<size_t>(width_) * static_cast<size_t>(pixel_bytes_));
    }
    sink_.done(y);
  }

 private:
  RowSink& sink_;
  int width_, height_, pixel_bytes_;
  bool flip_x_, flip_y_;
  int taken_ = 0;
};

// "47 49 46 38": what other bytes begin with.
std::string first_bytes(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::byte b : bytes.first(std::min<size_t>(bytes.size(), 4))) {
    const auto value = static_cast<unsigned>(b);
    text += text.empty() ? "" : " ";
    text += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

}  // namespace

Picture::Part Picture::Part::cropped(int left, int top, int w, int h, bool flip_x,
                                     bool flip_y) const {
  if (flip_x) left = width - left - w;
  if (flip_y) top = height - top - h;
  return {x + left, y + top, w, h};
}

void Picture::start(int width, int height, int channels, int value_bytes) {
  in_width_ = width;
  in_height_ = height;
  channels_ = channels;
  value_bytes_ = value_bytes;
  box_ = {0, 0, width, height};
  scaled_ = flip_x_ = flip_y_ = chw_ = false;
  normalization_ = nullptr;
}

// By the first bytes; null: none.
Decoder* Picture::decoder_of(std::span<const std::byte> bytes) {
  const auto made = [](std::unique_ptr<Decoder>& decoder, std::unique_ptr<Decoder> (*make)()) {
    if (decoder == nullptr) decoder = make();
    return decoder.get();
  };
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (all.starts_with("\xFF\xD8")) return &jpeg_;
  if (all.starts_with("\x89PNG")) return made(png_, png_decoder);
  if (all.starts_with("GIF8")) return made(gif_, gif_decoder);
  if (all.starts_with("BM")) return made(bmp_, bmp_decoder);
  if (all.starts_with("RIFF") && all.size() >= 12 && all.substr(8, 4) == "WEBP")
    return made(webp_, webp_decoder);
  for (std::string_view pnm : {"P2", "P3", "P5", "P6"}) {
    if (all.starts_with(pnm)) return made(pnm_, pnm_decoder);
  }
  return nullptr;
}

void Picture::open(std::span<const std::byte> bytes, const DecodeOptions& options) {
  if (bytes.empty()) throw Error(Code::kDataLoss, "image.decode", "there are no bytes");
  decoder_ = decoder_of(bytes);
  if (decoder_ == nullptr) {
    throw Error(Code::kDataLoss, "image.decode",
                "neither a BMP, GIF, JPEG, PGM, PNG, PPM nor WebP: " +
                    std::to_string(bytes.size()) + " bytes that begin with " + first_bytes(bytes));
  }
  fast_ = options.fast;
  decoder_->open(bytes, options);
  from_ = From::kFile;
  start(decoder_->width(), decoder_->height(), options.channels, 1);
  const int orientation = options.exif ? decoder_->orientation() : 1;
  if (orientation >= 5) turn(orientation == 5 || orientation == 6 ? 3 : 1);
  // What is left of each of these is a mirror image.
  flip(orientation == 2 || orientation == 3 || orientation == 5 || orientation == 7,
       orientation == 3 || orientation == 4);
  moves_.clear();
}

void Picture::open(const ImageView& pixels) {
  from_ = From::kPixels;
  pixels_ = pixels;
  start(pixels.width, pixels.height, pixels.channels, pixels.value_bytes);
  moves_.clear();
}

Move& Picture::moved(Move::Kind kind, int width, int height) {
  moves_.push_back({.kind = kind,
                    .in_width = this->width(),
                    .in_height = this->height(),
                    .width = width,
                    .height = height});
  return moves_.back();
}

void Picture::repeat(const Move& move, uint8_t fill) {
  switch (move.kind) {
    case Move::Kind::kCrop:
      return crop(move.left, move.top, move.width, move.height);
    case Move::Kind::kResize:
      return resize(move.height, move.width, Filter::kNearest, true);
    case Move::Kind::kFlip:
      return flip(move.flip_x, move.flip_y);
    case Move::Kind::kTurn:
      return turn(move.quarters);
    case Move::Kind::kPad:
      return pad(move.left, move.top, move.width - move.in_width - move.left,
                 move.height - move.in_height - move.top, fill);
    case Move::Kind::kWarp:
      return warp(move.map, {Sampling::kNearest, move.beyond, static_cast<double>(fill)});
  }
}

void Picture::crop(int x, int y, int width, int height) {
  Move& move = moved(Move::Kind::kCrop, width, height);
  move.left = x;
  move.top = y;
  Part& part = scaled_ ? window_ : box_;
  part = part.cropped(x, y, width, height, flip_x_, flip_y_);
}

void Picture::resize(int height, int width, Filter filter, bool antialias) {
  if (width == this->width() && height == this->height()) return;
  moved(Move::Kind::kResize, width, height);
  // The sums of a mirrored image may be rounded otherwise.
  if (!plain()) settle();
  scaled_ = true;
  scaled_width_ = width;
  scaled_height_ = height;
  filter_ = filter;
  antialias_ = antialias;
  window_ = {0, 0, width, height};
}

void Picture::flip(bool horizontal, bool vertical) {
  if (horizontal || vertical) {
    Move& move = moved(Move::Kind::kFlip, width(), height());
    move.flip_x = horizontal;
    move.flip_y = vertical;
  }
  flip_x_ ^= horizontal;
  flip_y_ ^= vertical;
}

void Picture::turn(int quarters) {
  if (quarters % 4 == 0) return;
  if (quarters % 4 == 2) return flip(true, true);
  moved(Move::Kind::kTurn, height(), width()).quarters = quarters % 4;
  const ImageView in = pixels();
  Image& out = memory_[next_];
  transpose(in, out);
  next_ = 1 - next_;
  pixels_ = out.view();
  start(pixels_.width, pixels_.height, channels_, value_bytes_);
  (quarters % 4 == 3 ? flip_x_ : flip_y_) = true;
}

void Picture::pad(int left, int top, int right, int bottom, uint8_t value) {
  Move& move = moved(Move::Kind::kPad, left + width() + right, top + height() + bottom);
  move.left = left;
  move.top = top;
  put_in_frame(left, top, right, bottom, value);
}

void Picture::put_in_frame(int left, int top, int right, int bottom, uint8_t value) {
  Image& out = memory_[next_];
  out.reset(left + width() + right, top + height() + bottom, channels_, value_bytes_);
  const ImageView& all = out.view();
  const size_t bytes = all.stride * static_cast<size_t>(all.height);
  if (left + top + right + bottom == 0) {
    // No border.
  } else if (value_bytes_ == 1) {
    std::memset(out.row(0), value, bytes);
  } else {
    std::fill_n(reinterpret_cast<float*>(out.row(0)), bytes / sizeof(float), value);
  }
  ImageSink sink(out, left, top);
  give(sink);
  next_ = 1 - next_;
  from_ = From::kPixels;
  pixels_ = all;
  start(all.width, all.height, channels_, value_bytes_);
}

void Picture::grey(int channels) {
  settle();
  Image& out = memory_[next_];
  to_grey(pixels_, channels, out);
  next_ = 1 - next_;
  pixels_ = out.view();
  start(pixels_.width, pixels_.height, channels, 1);
}

void Picture::warp(const Map& map, const WarpOptions& options) {
  Move& move = moved(Move::Kind::kWarp, width(), height());
  move.map = map;
  move.beyond = options.beyond;
  const ImageView in = pixels();
  warper_.begin(in, map, options);
  from_ = From::kWarped;
  start(in.width, in.height, channels_, value_bytes_);
}

Image& Picture::edited() {
  const Image& own = memory_[1 - next_];
  const bool whole = from_ == From::kPixels && plain() && pixels_.data == own.view().data &&
                     box_.width == pixels_.width && box_.height == pixels_.height;
  if (!whole) settle();
  return memory_[1 - next_];
}

ImageView Picture::pixels() {
  if (from_ != From::kPixels || !plain()) settle();
  return {pixels_.row(box_.y) + box_.x * pixel_bytes(),
          box_.width,
          box_.height,
          channels_,
          pixels_.stride,
          value_bytes_};
}

void Picture::write(std::byte* to) {
  if (normalization_ == nullptr && !chw_) {
    PlainSink sink(to, static_cast<size_t>(width()) * static_cast<size_t>(pixel_bytes()));
    return give(sink);
  }
  if (value_bytes_ == 1) {
    ConvertingSink<uint8_t> sink(to, width(), height(), channels_, normalization_.get(), chw_,
                                 row_);
    return give(sink);
  }
  ConvertingSink<float> sink(to, width(), height(), channels_, normalization_.get(), chw_, row_);
  give(sink);
}

// The largest denominator at which the part that is resized stays as large as the result.
int Picture::decoded_smaller() {
  if (!fast_ || from_ != From::kFile || decoder_ != &jpeg_ || !scaled_) return 1;
  int denominator = 1;
  while (denominator < 8 && box_.width >= scaled_width_ * denominator * 2 &&
         box_.height >= scaled_height_ * denominator * 2) {
    denominator *= 2;
  }
  return denominator;
}

void Picture::give(RowSink& sink) {
  if (!scaled_) {
    Copying copying(sink, box_.width, box_.height, pixel_bytes(), flip_x_, flip_y_);
    return read(box_.x, box_.y, box_.x + box_.width, box_.y + box_.height, copying);
  }
  const int denominator = decoded_smaller();
  // What the filter looks at ends with the part: it is a cut of its own.
  int left = box_.x, top = box_.y, right = left + box_.width, bottom = top + box_.height;
  double x = 0, y = 0, width = box_.width, height = box_.height;
  if (denominator > 1) {
    jpeg_.set_scale(denominator);
    x = static_cast<double>(left) / denominator;
    y = static_cast<double>(top) / denominator;
    width /= denominator;
    height /= denominator;
    right = std::min((right + denominator - 1) / denominator, jpeg_.width());
    bottom = std::min((bottom + denominator - 1) / denominator, jpeg_.height());
    left /= denominator;
    top /= denominator;
    x -= left;
    y -= top;
  }
  const ResizeSpec spec{
      {right - left, x, x + width, scaled_width_, window_.x, window_.width, filter_, antialias_},
      {bottom - top, y, y + height, scaled_height_, window_.y, window_.height, filter_, antialias_},
      channels_,
      flip_x_,
      flip_y_};
  // Planes are decoded over the whole width: more work than pixels of a narrow part are.
  if (from_ == From::kFile && decoder_ == &jpeg_ && PlaneResizer::can(spec) &&
      2 * (right - left) >= jpeg_.width()) {
    if (const auto layout = jpeg_.planes()) {
      plane_resizer_.begin(spec, *layout, left, top, fast_, sink);
      return jpeg_.read_planes(plane_resizer_.first_band(), plane_resizer_.end_band(),
                               plane_resizer_);
    }
  }
  resizer_.begin(spec, sink);
  read(left + resizer_.first_column(), top + resizer_.first_row(), left + resizer_.end_column(),
       top + resizer_.end_row(), resizer_);
}

void Picture::read(int x0, int y0, int x1, int y1, RowTaker& taker) {
  switch (from_) {
    case From::kFile:
      return decoder_->read(x0, y0, x1, y1, taker);
    case From::kWarped:
      warped_row_.resize(static_cast<size_t>(x1 - x0) * static_cast<size_t>(pixel_bytes()));
      for (int y = y0; y < y1; ++y) {
        warper_.row(y, x0, x1, warped_row_.data());
        taker.take(warped_row_.data());
      }
      return;
    case From::kPixels:
      for (int y = y0; y < y1; ++y) taker.take(pixels_.row(y) + x0 * pixel_bytes());
  }
}

}  // namespace penstock::image
