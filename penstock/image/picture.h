#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/image/decoder.h"
#include "penstock/image/image.h"
#include "penstock/image/jpeg.h"
#include "penstock/image/move.h"
#include "penstock/image/pixels.h"
#include "penstock/image/plane_resize.h"
#include "penstock/image/resize.h"
#include "penstock/image/warp.h"

namespace penstock::image {

// An image on its way through operations. Each of these only notes what is to be done: write() and
// no earlier decodes the rows that are needed, resizes, mirrors and normalizes them while they are
// in the cache, and writes the result. Only what has to look at a whole image (a turn, a second
// resize, pad) makes one in between, in memory that is used again for the next image.
//
// Errors of decoding are Decoder's; of all members std::bad_alloc. REQUIRED of
// the geometric ones: no normalize() or to_chw() before. One thread.
class Picture {
 public:
  Picture() = default;
  Picture(const Picture&) = delete;
  Picture& operator=(const Picture&) = delete;

  // A BMP, GIF, JPEG, PGM, PNG, PPM or WebP, by its first bytes. The header is read; the bytes stay
  // valid until write().
  void open(std::span<const std::byte> bytes, const DecodeOptions& options);
  // Pixels, which stay valid until write().
  void open(const ImageView& pixels);

  int width() const { return scaled_ ? window_.width : box_.width; }
  int height() const { return scaled_ ? window_.height : box_.height; }
  int channels() const { return channels_; }
  bool floats() const { return value_bytes_ == 4; }  // float32, else uint8

  // REQUIRED: the part lies within the image, and is not empty.
  void crop(int x, int y, int width, int height);
  // REQUIRED: uint8.
  void resize(int height, int width, Filter filter, bool antialias);
  void flip(bool horizontal, bool vertical);
  void turn(int quarters);  // counter-clockwise, as numpy.rot90
  // A border all around, of every channel.
  void pad(int left, int top, int right, int bottom, uint8_t value);
  void warp(const Map& map, const WarpOptions& options);
  // What moved the pixels since open(), in order. Valid until the next operation.
  const std::vector<Move>& moves() const { return moves_; }
  // Moves a mask of classes as its image was moved: no value becomes another one. `fill`: of pixels
  // that are new. REQUIRED: the mask has the size of the image before the move.
  void repeat(const Move& move, uint8_t fill);
  void grey(int channels);  // see to_grey; REQUIRED: uint8
  // Everything that was noted is done: pixels, which the caller may change until the next call.
  Image& edited();
  // REQUIRED: one number, or as many as channels.
  void normalize(NormalizationRef normalization) { normalization_ = std::move(normalization); }
  void to_chw() { chw_ = true; }

  // The image in memory, which stays as it is until the next operation. REQUIRED: no normalize() or
  // to_chw() before. Further operations may follow.
  ImageView pixels();

  // Writes the image, contiguous, of its values or normalized float32; nothing else may be called
  // then but open(). `to` has space for width * height * channels values.
  void write(std::byte* to);

 private:
  enum class From : uint8_t { kPixels, kFile, kWarped };
  struct Part {
    int x = 0, y = 0, width = 0, height = 0;
    Part cropped(int left, int top, int w, int h, bool flip_x, bool flip_y) const;
  };
  Decoder* decoder_of(std::span<const std::byte> bytes);
  void start(int width, int height, int channels, int value_bytes);
  int pixel_bytes() const { return channels_ * value_bytes_; }
  // Everything that was noted is done; the picture is pixels in memory of its own.
  void settle() { put_in_frame(0, 0, 0, 0, 0); }
  void put_in_frame(int left, int top, int right, int bottom, uint8_t value);
  // Notes a move, of the picture as it is.
  Move& moved(Move::Kind kind, int width, int height);
  void give(RowSink& sink);
  void read(int x0, int y0, int x1, int y1, RowTaker& taker);
  int decoded_smaller();
  bool plain() const { return !scaled_ && !flip_x_ && !flip_y_; }

  From from_ = From::kPixels;
  Decoder* decoder_ = nullptr;  // of a file
  ImageView pixels_;
  JpegReader jpeg_;
  std::unique_ptr<Decoder> bmp_, gif_, png_, pnm_, webp_;  // made for the first such file
  Warper warper_;
  bool fast_ = false;
  int channels_ = 3, value_bytes_ = 1;
  int in_width_ = 0, in_height_ = 0;  // of what is read
  // In this order: the part of it; its size; the part of that; mirrored.
  Part box_;
  bool scaled_ = false;
  int scaled_width_ = 0, scaled_height_ = 0;
  Filter filter_ = Filter::kBilinear;
  bool antialias_ = true;
  Part window_;
  bool flip_x_ = false, flip_y_ = false;
  NormalizationRef normalization_;
  bool chw_ = false;
  std::vector<Move> moves_;

  Resizer resizer_;
  PlaneResizer plane_resizer_;
  Image memory_[2];  // what was settled, and the next
  int next_ = 0;
  std::vector<uint8_t> row_, warped_row_;
};

}  // namespace penstock::image
