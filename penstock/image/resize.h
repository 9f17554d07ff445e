#pragma once

#include <cstdint>
#include <vector>

#include "penstock/image/horizontal.h"
#include "penstock/image/image.h"
#include "penstock/image/resize_filter.h"

namespace penstock::image {

// A part of an image that is resized, and the part of the result that is wanted.
struct ResizeSpec {
  AxisScale x, y;
  int channels = 3;
  bool flip_x = false, flip_y = false;  // the wanted part is mirrored after it was resized
};

// Resizes an image whose rows come one after the other: each row is resized horizontally while it
// is in the cache, and a row of the result is written as soon as its last input row was taken. The
// results are Pillow's in two passes, horizontally first, bit for bit, for images without alpha.
// (Since version 13 Pillow chooses the order of the passes by the sizes. Pillow also multiplies
// colours with alpha before it resizes; here each channel is resized by itself.) One thread.
class Resizer : public RowTaker {
 public:
  // The sink outlives the last take(). May throw std::bad_alloc.
  void begin(const ResizeSpec& spec, RowSink& sink);

  // The input that is needed: rows [first_row(), end_row()), and of each these columns.
  int first_row() const { return y_.first_input(); }
  int end_row() const { return y_.end_input(); }
  int first_column() const { return x_.axis().first_input(); }
  int end_column() const { return x_.axis().end_input(); }

  // The next row, from first_row() on. `row` points to column first_column().
  void take(const uint8_t* row) override;

 private:
  uint8_t* kept(int row);
  void resize_row(const uint8_t* row, uint8_t* to);
  void give(int place);

  ResizeSpec spec_;
  RowSink* sink_ = nullptr;
  HorizontalPass x_;
  AxisWeights y_;
  int row_ = 0;    // the next input row
  int place_ = 0;  // the next wanted row
  int kept_rows_ = 0;
  size_t row_bytes_ = 0, row_stride_ = 0;
  std::vector<uint8_t> rows_;  // the last input rows, resized horizontally
  std::vector<const uint8_t*> taps_;
};

}  // namespace penstock::image
