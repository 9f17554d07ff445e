#pragma once

#include <cstdint>
#include <vector>

#include "penstock/image/image.h"
#include "penstock/image/plane_excess.h"
#include "penstock/image/plane_kernels.h"
#include "penstock/image/plane_weights.h"
#include "penstock/image/planes.h"
#include "penstock/image/resize.h"

namespace penstock::image {

// Resizes the planes of a JPEG, and makes pixels of the result: Cb and Cr have a quarter of the
// samples, and no pixel is made at full size. Each row of the result is written as soon as its last
// band was decoded.
//
// The interpolation of Cb and Cr, the resize and the matrix of colours are linear, so the result is
// Resizer's but for rounding: within 1, and within 2 at less than one of a thousand values. One
// step is not linear: what is beyond black or a full colour is cut off. Segments that may have such
// pixels are found; what cutting off changes in each pixel of these is resized by itself, and
// added, unless the resize is a fast one. One thread.
class PlaneResizer : public PlaneSink {
 public:
  // Whether the resize can be done here: by the antialiased bilinear filter, which averages pixels
  // and has no negative weights, to at most the size of the part, with at most kMaxTaps weights.
  static bool can(const ResizeSpec& spec);

  // The part of the image that is resized begins at (left, top). `fast`: pixels are cut off after
  // the resize, not before. The sink outlives the last done(). REQUIRED: can(spec). May throw
  // std::bad_alloc.
  void begin(const ResizeSpec& spec, const PlaneLayout& layout, int left, int top, bool fast,
             RowSink& sink);

  // The bands that are needed: [first_band(), end_band()).
  int first_band() const { return first_band_; }
  int end_band() const { return end_band_; }

  uint8_t* row(int plane, int y) override;
  void done(int band) override;

 private:
  static constexpr int kMaxTaps = 64;  // rounding errors of so many stay far below a level

  // A plane's weights, and its rows that were decoded last.
  struct Plane {
    PlaneWeights x, y;
    PlaceGroups groups;
    int width = 0, height = 0, band_rows = 0;
    int kept = 0;  // rows
    size_t stride = 0;
    std::vector<uint8_t> rows;
    std::vector<int16_t> sums, places;  // of one row of the result
  };

  void compose();
  void keep_rows();
  const Plane& plane(int number) const { return planes_[number == 0 ? 0 : 1]; }
  const uint8_t* kept(int number, int y) const;
  void resize_row(int number, int place);
  void give(int place);
  void find_excess();
  bool sum_excess(int place);

  const PlaneKernels* kernels_ = &plane_kernels()[0];
  const ExcessKernels* excess_kernels_ = &excess_kernels()[0];
  ResizeSpec spec_;
  PlaneLayout layout_;
  RowSink* sink_ = nullptr;
  int left_ = 0, top_ = 0;
  bool fast_ = false;
  bool composed_ = false;  // weights are those of the members above
  AxisWeights x_, y_;
  Plane planes_[2];  // of luminance; of Cb, and of Cr, which is like it
  std::vector<uint8_t> cr_rows_;
  std::vector<int16_t> cr_places_;
  std::vector<int> last_bands_;  // of each wanted row
  int first_band_ = 0, end_band_ = 0;
  int place_ = 0;  // the next wanted row

  // What cutting off changes, of the rows of luminance that are kept, in segments of kSegment
  // samples of Cb and Cr: [first_segment_, end_segment_), those of the needed columns.
  int first_segment_ = 0, end_segment_ = 0;
  size_t excess_row_ = 0;  // numbers of a row and a colour
  int there_ = 0;          // colour rows that were decoded
  int seen_ = 0;           // colour rows whose pixels were looked at
  std::vector<int16_t> excess_;
  std::vector<uint8_t> beyond_;       // flags of segments of the rows that are looked at
  std::vector<uint8_t> changed_;      // of each row, for each segment: the colours
  std::vector<uint8_t> row_changed_;  // of each row, for all segments
  std::vector<const uint8_t*> seen_y_, seen_cb_, seen_cr_;
  // The sums of one row of the result.
  std::vector<uint8_t> sum_changed_;  // for each segment: the colours
  std::vector<int16_t> excess_sums_[3], excess_places_[3];
};

}  // namespace penstock::image
