#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace penstock::image {

// The most pixels of an image that is decoded; Pillow refuses images beyond the same number.
inline constexpr uint64_t kMaxPixels = 178'956'970;

// Rows of pixels, channels last. Not owned.
struct ImageView {
  const uint8_t* data = nullptr;
  int width = 0, height = 0, channels = 0;
  size_t stride = 0;    // bytes from one row to the next
  int value_bytes = 1;  // 1: uint8; 4: float32

  int pixel_bytes() const { return channels * value_bytes; }
  const uint8_t* row(int y) const { return data + static_cast<size_t>(y) * stride; }
};

// An image in memory of its own, which is kept for the next one. One thread.
class Image {
 public:
  // The contents are undefined. May throw std::bad_alloc.
  void reset(int width, int height, int channels, int value_bytes = 1) {
    const size_t stride = static_cast<size_t>(width) * static_cast<size_t>(channels) *
                          static_cast<size_t>(value_bytes);
    const size_t bytes = stride * static_cast<size_t>(height);
    if (bytes > capacity_) {
      capacity_ = 0;
      memory_.reset(new uint8_t[bytes]);
      capacity_ = bytes;
    }
    view_ = {memory_.get(), width, height, channels, stride, value_bytes};
  }
  const ImageView& view() const { return view_; }
  uint8_t* row(int y) { return memory_.get() + static_cast<size_t>(y) * view_.stride; }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  size_t capacity_ = 0;
  ImageView view_;
};

// Receives an image row by row, in any order.
class RowSink {
 public:
  virtual ~RowSink() = default;
  virtual uint8_t* row(int y) = 0;  // where row y is to be written
  virtual void done(int y) { (void)y; }
};

// Is given rows from the top to the bottom.
class RowTaker {
 public:
  virtual ~RowTaker() = default;
  virtual void take(const uint8_t* row) = 0;  // valid until it returns
};

}  // namespace penstock::image
