#include "penstock/image/plane_resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace penstock::image {
namespace {

// Weights of rows add up to this.
constexpr int kRowTotal = 65535;
constexpr size_t kPad = kPlanePadding;

constexpr size_t padded(size_t n) { return (n + kPad - 1) / kPad * kPad + kPad; }

bool enlarges(const AxisScale& axis) { return axis.end - axis.begin < axis.out; }

int most_taps(const AxisScale& axis) {
  return 2 * static_cast<int>(std::ceil((axis.end - axis.begin) / axis.out)) + 1;
}

}  // namespace

bool PlaneResizer::can(const ResizeSpec& spec) {
  return spec.x.filter == Filter::kBilinear && spec.x.antialias && !enlarges(spec.x) &&
         !enlarges(spec.y) && std::max(most_taps(spec.x), most_taps(spec.y)) <= kMaxTaps;
}

void PlaneResizer::begin(const ResizeSpec& spec, const PlaneLayout& layout, int left, int top,
                         bool fast, RowSink& sink) {
  const bool new_x = x_.reset(spec.x), new_y = y_.reset(spec.y);
  if (new_x || new_y || left != left_ || top != top_ || layout != layout_ ||
      spec.flip_x != spec_.flip_x) {
    composed_ = false;
  }
  spec_ = spec;
  layout_ = layout;
  left_ = left;
  top_ = top;
  fast_ = fast;
  sink_ = &sink;
  if (!composed_) {
    compose();
    keep_rows();
    composed_ = true;
  }
  place_ = there_ = 0;
  seen_ = planes_[0].y.begin(0) / layout_.down;
}

void PlaneResizer::compose() {
  const PlaneLayout& layout = layout_;
  const SampleAxis across[2] = {{layout.width, 1, false},
                                {layout.colour_width, layout.across, layout.smooth}};
  const SampleAxis down[2] = {{layout.height, 1, false},
                              {layout.colour_height, layout.down, layout.smooth}};
  for (int i = 0; i < (layout.count == 3 ? 2 : 1); ++i) {
    Plane& plane = planes_[i];
    plane.x.compose(x_, spec_.x.count, left_, across[i], 1 << PlaceGroups::kWeightBits,
                    spec_.flip_x);
    plane.y.compose(y_, spec_.y.count, top_, down[i], kRowTotal, false);
    plane.groups.reset(plane.x, spec_.x.count);
    plane.width = across[i].count;
    plane.height = down[i].count;
    plane.band_rows = i == 0 ? layout.band_rows : layout.colour_band_rows;
    plane.stride = kPad + padded(static_cast<size_t>(std::max(
                              plane.width, i == 0 ? layout.written : layout.colour_written)));
    plane.sums.resize(padded(static_cast<size_t>(plane.x.end() - plane.x.first())) +
                      static_cast<size_t>(plane.groups.blocks * PlaceGroups::kTaps));
    plane.places.resize(padded(static_cast<size_t>(spec_.x.count)));
  }
  if (layout.count != 3) {  // no colours
    planes_[1].places.assign(padded(static_cast<size_t>(spec_.x.count)), 0);
  }
  cr_places_.assign(planes_[1].places.size(), 0);
}

// Finds the last band that each row of the result needs, and from these how many rows of a plane
// are in use at once.
void PlaneResizer::keep_rows() {
  const int count = layout_.count == 3 ? 2 : 1;
  last_bands_.resize(static_cast<size_t>(spec_.y.count));
  first_band_ = planes_[0].y.begin(0) / planes_[0].band_rows;
  for (int i = 0; i < count; ++i) planes_[i].kept = 0;
  for (int place = 0; place < spec_.y.count; ++place) {
    int end[2];
    for (int i = 0; i < count; ++i) {
      end[i] = planes_[i].y.begin(place) + planes_[i].y.taps(place);
    }
    if (count == 2) {
      // find_excess() reads the colour rows above and below, and all pixels between these.
      const int last = std::min((end[0] - 1) / layout_.down, planes_[1].height - 1);
      end[1] = std::max(end[1], std::min(last + 2, planes_[1].height));
      const int first = std::min(planes_[0].y.begin(place) / layout_.down, planes_[1].height - 1);
      first_band_ = std::min(first_band_, std::max(first - 1, 0) / planes_[1].band_rows);
      end[0] = std::max(end[0], std::min((last + 1) * layout_.down, planes_[0].height));
    }
    int band = 0;
    for (int i = 0; i < count; ++i) band = std::max(band, (end[i] - 1) / planes_[i].band_rows);
    last_bands_[static_cast<size_t>(place)] = band;
    for (int i = 0; i < count; ++i) {
      const int begin = planes_[0].y.begin(place) / (i == 0 ? 1 : layout_.down) - 2;
      const int from = std::min(begin, planes_[i].y.begin(place));
      planes_[i].kept = std::max(planes_[i].kept, (band + 1) * planes_[i].band_rows - from);
    }
  }
  end_band_ = last_bands_.back() + 1;
  for (int i = 0; i < count; ++i) {
    Plane& plane = planes_[i];
    plane.rows.resize(plane.stride * static_cast<size_t>(plane.kept));
  }
  if (count == 1) return;
  Plane& colours = planes_[1];
  cr_rows_.resize(colours.rows.size());
  const int pixels = kSegment * layout_.across;
  first_segment_ = planes_[0].x.first() / pixels;
  end_segment_ = (planes_[0].x.end() + pixels - 1) / pixels;
  const auto segments = static_cast<size_t>(end_segment_ - first_segment_);
  const auto rows = static_cast<size_t>(planes_[0].kept);
  excess_row_ = segments * static_cast<size_t>(pixels);
  excess_.resize(3 * rows * excess_row_);
  beyond_.resize(segments);
  changed_.resize(rows * segments);
  row_changed_.resize(rows);
  sum_changed_.assign(segments, 0);
  for (int c = 0; c < 3; ++c) {
    excess_sums_[c].assign(
        excess_row_ + kPad + static_cast<size_t>(planes_[0].groups.blocks * PlaceGroups::kTaps), 0);
    excess_places_[c].assign(planes_[0].places.size(), 0);
  }
}

uint8_t* PlaneResizer::row(int number, int y) {
  Plane& plane = planes_[number == 0 ? 0 : 1];
  auto& rows = number == 2 ? cr_rows_ : plane.rows;
  return rows.data() + plane.stride * static_cast<size_t>(y % plane.kept) + kPad;
}

const uint8_t* PlaneResizer::kept(int number, int y) const {
  const Plane& plane = this->plane(number);
  const auto& rows = number == 2 ? cr_rows_ : plane.rows;
  return rows.data() + plane.stride * static_cast<size_t>(y % plane.kept) + kPad;
}

void PlaneResizer::done(int band) {
  for (int number = 0; number < layout_.count; ++number) {
    const Plane& plane = this->plane(number);
    const int begin = band * plane.band_rows;
    for (int y = begin; y < std::min(begin + plane.band_rows, plane.height); ++y) {
      // The outermost samples go on beyond the plane.
      uint8_t* const samples = row(number, y);
      samples[-1] = samples[0];
      std::memset(samples + plane.width, samples[plane.width - 1], kPad);
    }
  }
  there_ = std::min((band + 1) * planes_[1].band_rows, planes_[1].height);
  while (place_ < spec_.y.count && last_bands_[static_cast<size_t>(place_)] <= band) give(place_++);
}

void PlaneResizer::resize_row(int number, int place) {
  Plane& plane = planes_[number == 0 ? 0 : 1];
  const int begin = plane.y.begin(place), taps = plane.y.taps(place);
  const int32_t* numbers = plane.y.weights(place);
  uint16_t weights[kMaxTaps];
  const uint8_t* rows[kMaxTaps];
  for (int k = 0; k < taps; ++k) {
    rows[k] = kept(number, begin + k) + plane.x.first();
    weights[k] = static_cast<uint16_t>(numbers[k]);
  }
  kernels_->sum_rows(rows, weights, taps, plane.sums.data(),
                     static_cast<size_t>(plane.x.end() - plane.x.first()));
  auto& places = number == 2 ? cr_places_ : plane.places;
  kernels_->sum_places(plane.sums.data(), plane.groups, 16, places.data());
}

void PlaneResizer::give(int place) {
  for (int number = 0; number < layout_.count; ++number) resize_row(number, place);
  const int y = spec_.flip_y ? spec_.y.count - 1 - place : place;
  const int16_t* excess[3] = {excess_places_[0].data(), excess_places_[1].data(),
                              excess_places_[2].data()};
  const bool any = layout_.count == 3 && !fast_ && sum_excess(place);
  kernels_->to_pixels(planes_[0].places.data(), planes_[1].places.data(), cr_places_.data(),
                      any ? excess : nullptr, sink_->row(y), spec_.x.count, spec_.channels);
  sink_->done(y);
}

// Computes the excess of all decoded colour rows whose next row was decoded, too.
void PlaneResizer::find_excess() {
  const int last = planes_[1].height - 1, last_y = planes_[0].height - 1;
  const int end = there_ > last ? last + 1 : there_ - 1;
  if (end <= seen_) return;
  const int segments = end_segment_ - first_segment_, first = kSegment * first_segment_;
  const int begin_y = seen_ * layout_.down, end_y = std::min(end * layout_.down, last_y + 1);
  seen_y_.clear();
  seen_cb_.clear();
  seen_cr_.clear();
  for (int y = begin_y; y < end_y; ++y) {
    seen_y_.push_back(kept(0, y) + first * layout_.across);
    const auto row = static_cast<size_t>(y % planes_[0].kept);
    row_changed_[row] = 0;
    std::memset(changed_.data() + row * beyond_.size(), 0, beyond_.size());
  }
  for (int y = seen_ - 1; y <= end; ++y) {
    seen_cb_.push_back(kept(1, std::clamp(y, 0, last)) + first);
    seen_cr_.push_back(kept(2, std::clamp(y, 0, last)) + first);
  }
  excess_kernels_->beyond(seen_y_, layout_.across, seen_cb_, seen_cr_, segments, beyond_.data());
  for (int s = 0; s < segments; ++s) {
    if (beyond_[static_cast<size_t>(s)] == 0) continue;
    const int sample = s * kSegment, pixel = sample * layout_.across;
    for (int y = begin_y; y < end_y; ++y) {
      const int near = y / layout_.down;
      int far = near;
      if (layout_.smooth && layout_.down == 2) {
        far = std::clamp(y % 2 == 0 ? near - 1 : near + 1, 0, last);
      }
      const auto near_at = static_cast<size_t>(near - seen_ + 1);
      const auto far_at = static_cast<size_t>(far - seen_ + 1);
      const auto row = static_cast<size_t>(y % planes_[0].kept);
      int16_t* to[3];
      for (size_t c = 0; c < 3; ++c) to[c] = excess_.data() + (3 * row + c) * excess_row_ + pixel;
      const int changed =
          excess_kernels_->excess(seen_y_[static_cast<size_t>(y - begin_y)] + pixel,
                                  {seen_cb_[near_at] + sample, seen_cb_[far_at] + sample,
                                   seen_cr_[near_at] + sample, seen_cr_[far_at] + sample},
                                  layout_.across, layout_.smooth, to);
      changed_[row * beyond_.size() + static_cast<size_t>(s)] = static_cast<uint8_t>(changed);
      row_changed_[row] |= static_cast<uint8_t>(changed);
    }
  }
  seen_ = end;
}

// Resizes the excess for one row of the result. False: there is none.
bool PlaneResizer::sum_excess(int place) {
  const Plane& grey = planes_[0];
  const int begin = grey.y.begin(place), end = begin + grey.y.taps(place);
  // Rows before the first one may be overwritten.
  seen_ = std::max(seen_, std::min(begin / layout_.down, planes_[1].height - 1));
  if (seen_ * layout_.down < end) find_excess();
  const int segments = end_segment_ - first_segment_, pixels = kSegment * layout_.across;
  int any = 0;
  for (int y = begin; y < end; ++y) {
    const auto row = static_cast<size_t>(y % grey.kept);
    if (row_changed_[row] == 0) continue;
    any |= row_changed_[row];
    const uint8_t* const changed = changed_.data() + row * static_cast<size_t>(segments);
    const int weight = grey.y.weights(place)[y - begin];
    for (int s = 0; s < segments; ++s) sum_changed_[static_cast<size_t>(s)] |= changed[s];
    for (size_t c = 0; c < 3; ++c) {
      if ((row_changed_[row] >> c & 1) == 0) continue;
      excess_kernels_->add_changed(excess_.data() + (3 * row + c) * excess_row_, changed,
                                   static_cast<int>(c), segments, pixels, weight,
                                   excess_sums_[c].data());
    }
  }
  if (any == 0) return false;
  for (int c = 0; c < 3; ++c) {
    auto& places = excess_places_[c];
    if ((any >> c & 1) != 0) {
      kernels_->sum_places(excess_sums_[c].data() + grey.x.first() - first_segment_ * pixels,
                           grey.groups, 15, places.data());
    } else {
      std::fill(places.begin(), places.end(), int16_t{0});
    }
  }
  for (int s = 0; s < segments; ++s) {
    if (sum_changed_[static_cast<size_t>(s)] == 0) continue;
    sum_changed_[static_cast<size_t>(s)] = 0;
    for (auto& sums : excess_sums_) {
      std::fill_n(sums.data() + static_cast<ptrdiff_t>(s * pixels), pixels, int16_t{0});
    }
  }
  return true;
}

}  // namespace penstock::image
