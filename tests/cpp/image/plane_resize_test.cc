#include "penstock/image/plane_resize.h"

#include <gtest/gtest.h>

#include <random>

#include "penstock/image/picture.h"
#include "pictures.h"

namespace penstock {
namespace {

using image::Filter;
using image::Picture;
using image::PlaneKernels;
using testing::Bytes;
using testing::Pixels;

// Full colours and black beside each other: many pixels of their JPEG are beyond these.
Pixels saturated(int width, int height, int channels = 3) {
  Pixels made = testing::pixels_of(width, height, channels);
  for (uint8_t& value : made.values) value = value > 90 ? 255 : 0;
  return made;
}

Pixels resized(Picture& picture, int width, int height) {
  picture.resize(height, width, Filter::kBilinear, true);
  return testing::written(picture);
}

// Of the pixels that a whole decoding gives.
Pixels resized_pixels(const Pixels& pixels, int width, int height) {
  Picture picture;
  picture.open(pixels.view());
  return resized(picture, width, height);
}

// The greatest difference, and how many of a thousand values differ by more than 1.
struct Difference {
  int most = 0;
  double beyond_one = 0;
};
Difference difference_of(const Pixels& one, const Pixels& other) {
  EXPECT_EQ(one.values.size(), other.values.size());
  Difference found;
  for (size_t i = 0; i < one.values.size(); ++i) {
    const int off = std::abs(one.values[i] - other.values[i]);
    found.most = std::max(found.most, off);
    found.beyond_one += off > 1;
  }
  found.beyond_one *= 1000.0 / static_cast<double>(one.values.size());
  return found;
}

TEST(PlaneResizeTest, planes_are_resized_as_pixels_are) {
  struct Size {
    int width, height;
  };
  Picture picture;
  for (int sampling : {1, 2}) {
    for (bool progressive : {false, true}) {
      for (const auto& [width, height] : {Size{211, 167}, {200, 160}, {33, 1}, {1, 40}, {97, 64}}) {
        for (const Pixels& pixels : {testing::pixels_of(width, height), saturated(width, height),
                                     testing::pixels_of(width, height, 1)}) {
          const int most = pixels.channels == 1 ? 1 : sampling;
          const Bytes bytes = testing::jpeg_of(pixels, progressive, most);
          for (int channels : {1, 3, 4}) {
            const Pixels whole = testing::decoded(bytes, {.channels = channels});
            for (int divisor : {1, 2, 3, 10}) {
              const int to_width = (width + divisor) / (divisor + 1);
              const int to_height = (height + divisor - 1) / divisor;
              picture.open(bytes, {.channels = channels});
              const Pixels got = resized(picture, to_width, to_height);
              const Difference off = difference_of(got, resized_pixels(whole, to_width, to_height));
              EXPECT_LE(off.most, 2) << width << " x " << height << " by " << divisor;
              EXPECT_LE(off.beyond_one, 1) << width << " x " << height << " by " << divisor;
            }
          }
        }
      }
    }
  }
}

TEST(PlaneResizeTest, a_window_of_the_result_is_cut_out_of_the_whole) {
  Picture picture;
  for (const Pixels& pixels : {testing::pixels_of(211, 167), saturated(211, 167)}) {
    for (bool fast : {false, true}) {
      const Bytes bytes = testing::jpeg_of(pixels);
      for (int width : {190, 80, 31}) {
        picture.open(bytes, {.fast = fast});
        const Pixels whole = resized(picture, width, 60);
        for (int x : {0, 7, 20}) {
          picture.open(bytes, {.fast = fast});
          picture.resize(60, width, Filter::kBilinear, true);
          picture.crop(x, x, 11, 23);
          EXPECT_EQ(testing::written(picture), testing::cut(whole, x, x, 11, 23)) << width;
          picture.open(bytes, {.fast = fast});
          picture.resize(60, width, Filter::kBilinear, true);
          picture.flip(true, true);
          picture.crop(width - 11 - x, 60 - 23 - x, 11, 23);
          picture.flip(true, true);
          EXPECT_EQ(testing::written(picture), testing::cut(whole, x, x, 11, 23)) << width;
        }
      }
    }
  }
}

TEST(PlaneResizeTest, a_part_is_resized_as_its_pixels_are) {
  std::mt19937 random(5);
  Picture picture;
  const Bytes bytes = testing::jpeg_of(saturated(211, 167));
  const Pixels whole = testing::decoded(bytes);
  for (int i = 0; i < 60; ++i) {
    const int width = 106 + static_cast<int>(random() % 106);
    const int height = 20 + static_cast<int>(random() % 148);
    const int x = static_cast<int>(random() % static_cast<unsigned>(212 - width));
    const int y = static_cast<int>(random() % static_cast<unsigned>(168 - height));
    picture.open(bytes, {});
    picture.crop(x, y, width, height);
    const Difference off = difference_of(
        resized(picture, 64, 20), resized_pixels(testing::cut(whole, x, y, width, height), 64, 20));
    EXPECT_LE(off.most, 2) << x << ", " << y << ": " << width << " x " << height;
    EXPECT_LE(off.beyond_one, 1) << x << ", " << y << ": " << width << " x " << height;
  }
}

TEST(PlaneResizeTest, the_image_before_leaves_nothing_behind) {
  const Bytes first = testing::jpeg_of(saturated(211, 167));
  const Bytes others[] = {
      testing::jpeg_of(saturated(300, 90)),
      testing::jpeg_of(testing::pixels_of(64, 64, 1), false, 1),
      Bytes(first.begin(), first.begin() + static_cast<long>(first.size() / 2))};
  Picture fresh, used;
  fresh.open(first, {});
  const Pixels wanted = resized(fresh, 64, 50);
  for (const Bytes& other : others) {
    used.open(other, {.partial = true});
    (void)resized(used, 40, 30);
    used.open(first, {});
    EXPECT_EQ(resized(used, 64, 50), wanted);
  }
}

// Of an image without colours beyond black and white, only the DCT and the smoothing differ.
TEST(PlaneResizeTest, a_fast_one_cuts_off_after_the_resize) {
  Picture picture;
  const auto most = [&](const Pixels& pixels) {
    const Bytes bytes = testing::jpeg_of(pixels, false, 1);  // nothing to smooth
    picture.open(bytes, {});
    const Pixels exact = resized(picture, 50, 40);
    picture.open(bytes, {.fast = true});
    return difference_of(resized(picture, 50, 40), exact).most;
  };
  Pixels inside = testing::pixels_of(211, 167);
  for (uint8_t& value : inside.values) value = static_cast<uint8_t>(64 + value / 2);
  EXPECT_LE(most(inside), 6);
  EXPECT_GT(most(saturated(211, 167)), 6);  // black and white beside each other
  EXPECT_LE(most(saturated(211, 167)), 48);
}

TEST(PlaneResizeTest, other_resizes_are_those_of_the_pixels) {
  const Bytes bytes = testing::jpeg_of(testing::pixels_of(90, 70));
  const Pixels whole = testing::decoded(bytes);
  Picture picture, pixels;
  for (Filter filter : {Filter::kNearest, Filter::kBox, Filter::kBicubic, Filter::kLanczos}) {
    picture.open(bytes, {});
    picture.resize(30, 40, filter, true);
    pixels.open(whole.view());
    pixels.resize(30, 40, filter, true);
    EXPECT_EQ(testing::written(picture), testing::written(pixels)) << image::name_of(filter);
  }
  picture.open(bytes, {});
  EXPECT_EQ(resized(picture, 91, 30), resized_pixels(whole, 91, 30));  // enlarged
  picture.open(bytes, {});
  picture.crop(3, 5, 44, 60);
  EXPECT_EQ(resized(picture, 20, 30),
            resized_pixels(testing::cut(whole, 3, 5, 44, 60), 20, 30));  // narrow
}

// Random rows with space on both sides.
struct RandomRows {
  static constexpr size_t kSide = 64, kRows = 18, kWidth = 400;
  std::vector<uint8_t> values;
  std::vector<const uint8_t*> rows;

  // `spread`: values are within so much of 128.
  explicit RandomRows(unsigned seed, int spread = 128) : values(kRows * (kWidth + 2 * kSide)) {
    std::mt19937 random(seed);
    for (uint8_t& value : values) {
      value = static_cast<uint8_t>(std::clamp(
          128 - spread + static_cast<int>(random() % (2U * static_cast<unsigned>(spread))), 0,
          255));
    }
    for (size_t i = 0; i < kRows; ++i) rows.push_back(values.data() + i * (kWidth + 128) + kSide);
  }
};

TEST(PlaneKernelsTest, every_instruction_set_gives_the_same_numbers) {
  const auto all = image::plane_kernels();
  const PlaneKernels& plain = all.back();
  const RandomRows y(1), cb(2, 60), cr(3, 60), wild(4);
  const std::span<const uint8_t*const> y_rows(y.rows), cb_rows(cb.rows), cr_rows(cr.rows);
  std::mt19937 random(9);
  std::vector<int16_t> numbers(640);
  for (int16_t& number : numbers) number = static_cast<int16_t>(random());
  for (const PlaneKernels& kernels : all.first(all.size() - 1)) {
    for (int taps : {1, 2, 5, 17}) {
      std::vector<uint16_t> weights(static_cast<size_t>(taps), static_cast<uint16_t>(65535 / taps));
      std::vector<int16_t> one(448), other(448);
      kernels.sum_rows(wild.rows.data(), weights.data(), taps, one.data(), 330);
      plain.sum_rows(wild.rows.data(), weights.data(), taps, other.data(), 330);
      one.resize(330);
      other.resize(330);
      EXPECT_EQ(one, other) << kernels.name << taps;
    }
    for (int out : {500, 499, 300, 130, 70, 9, 1}) {
      for (bool mirrored : {false, true}) {
        image::AxisWeights axis;
        axis.reset({500, 0, 500, out, 0, out, Filter::kBilinear, true});
        image::PlaneWeights weights;
        weights.compose(axis, out, 0, {250, 2, true}, 1 << image::PlaceGroups::kWeightBits,
                        mirrored);
        image::PlaceGroups groups;
        groups.reset(weights, out);
        std::vector<int16_t> one(640), other(640);
        std::vector<int16_t> in(numbers);
        in.resize(640 + static_cast<size_t>(weights.most_taps()) * 2);
        kernels.sum_places(in.data(), groups, 16, one.data());
        plain.sum_places(in.data(), groups, 16, other.data());
        one.resize(static_cast<size_t>(out));
        other.resize(static_cast<size_t>(out));
        EXPECT_EQ(one, other) << kernels.name << out;
      }
    }
    std::vector<int16_t> sums[3], excess[3];
    for (auto& of : sums) of.resize(128);
    for (auto& of : excess) of.resize(128);
    for (int i = 0; i < 128; ++i) {
      const auto at = static_cast<size_t>(i);
      for (auto& of : sums)
        of[at] = static_cast<int16_t>(static_cast<int>(random() % 16321) - 8192);
      for (auto& of : excess)
        of[at] = static_cast<int16_t>(static_cast<int>(random() % 2000) - 1000);
    }
    const int16_t* const excesses[3] = {excess[0].data(), excess[1].data(), excess[2].data()};
    for (int channels : {1, 3, 4}) {
      for (int n : {1, 15, 16, 61}) {
        std::vector<uint8_t> one(256), other(256);  // what is behind the pixels stays
        for (const auto* added : {static_cast<const int16_t* const*>(nullptr), &excesses[0]}) {
          kernels.to_pixels(sums[0].data(), sums[1].data(), sums[2].data(), added, one.data(), n,
                            channels);
          plain.to_pixels(sums[0].data(), sums[1].data(), sums[2].data(), added, other.data(), n,
                          channels);
          EXPECT_EQ(one, other) << kernels.name << channels << ", " << n;
        }
      }
    }
  }
}

TEST(PlaneExcessTest, every_instruction_set_gives_the_same_numbers) {
  const auto all = image::excess_kernels();
  const image::ExcessKernels& plain = all.back();
  const RandomRows y(1), cb(2, 60), cr(3, 60);
  const std::span<const uint8_t*const> y_rows(y.rows), cb_rows(cb.rows), cr_rows(cr.rows);
  std::vector<int16_t> numbers(64, 3000);
  for (const image::ExcessKernels& kernels : all.first(all.size() - 1)) {
    int flagged = 0;
    for (int across : {1, 2}) {
      for (size_t down : {1U, 2U, 16U}) {
        std::vector<uint8_t> one(10), other(10);
        const size_t colour_rows = (down + 1) / 2 + 2;
        const auto some_y = y_rows.first(down), some_cb = cb_rows.first(colour_rows);
        const auto some_cr = cr_rows.first(colour_rows);
        kernels.beyond(some_y, across, some_cb, some_cr, 10, one.data());
        plain.beyond(some_y, across, some_cb, some_cr, 10, other.data());
        EXPECT_EQ(one, other) << kernels.name;
        for (uint8_t flag : one) flagged += flag;
      }
      for (bool smooth : {false, true}) {
        const image::ColourRows rows{cb.rows[0], cb.rows[1], cr.rows[0], cr.rows[1]};
        std::vector<int16_t> one[3], other[3];
        int16_t *to[3], *to_other[3];
        for (int c = 0; c < 3; ++c) {
          one[c].resize(32);
          other[c].resize(32);
          to[c] = one[c].data();
          to_other[c] = other[c].data();
        }
        EXPECT_EQ(kernels.excess(y.rows[0], rows, across, smooth, to),
                  plain.excess(y.rows[0], rows, across, smooth, to_other));
        for (int c = 0; c < 3; ++c) EXPECT_EQ(one[c], other[c]) << kernels.name << smooth;
      }
    }
    EXPECT_GT(flagged, 0);
    const uint8_t changed[4] = {1, 4, 0, 7};
    std::vector<int16_t> one(64), other(64);
    kernels.add_changed(numbers.data(), changed, 2, 4, 16, 40000, one.data());
    plain.add_changed(numbers.data(), changed, 2, 4, 16, 40000, other.data());
    EXPECT_EQ(one, other);
    EXPECT_EQ(one[0], 0);
    EXPECT_NE(one[17], 0);
  }
}

TEST(PlaneExcessTest, no_pixel_beyond_a_full_colour_is_missed) {
  const image::ExcessKernels& kernels = image::excess_kernels()[0];
  constexpr int kRowWidth = 64;
  std::vector<uint8_t> y(3 * kRowWidth), cb(3 * kRowWidth), cr(3 * kRowWidth);
  const uint8_t* const y_row = y.data() + kRowWidth;
  const uint8_t* const cb_row = cb.data() + kRowWidth;
  const uint8_t* const cr_row = cr.data() + kRowWidth;
  const std::vector<const uint8_t*> ys{y_row}, cbs(3, cb_row), crs(3, cr_row);
  int16_t excess[3][32];
  int16_t* const to[3] = {excess[0], excess[1], excess[2]};
  int beyond = 0, alarms = 0;
  for (int blue = 0; blue < 256; blue += 3) {
    std::fill(cb.begin(), cb.end(), static_cast<uint8_t>(blue));
    for (int red = 0; red < 256; red += 5) {
      std::fill(cr.begin(), cr.end(), static_cast<uint8_t>(red));
      for (int grey = 0; grey < 256; ++grey) {
        std::fill(y.begin(), y.end(), static_cast<uint8_t>(grey));
        uint8_t flag = 0;
        kernels.beyond(ys, 1, cbs, crs, 1, &flag);
        const bool changed = kernels.excess(y_row, {cb_row, cb_row, cr_row, cr_row}, 1, true, to);
        ASSERT_TRUE(flag != 0 || !changed) << grey << ", " << blue << ", " << red;
        beyond += changed;
        alarms += flag;
      }
    }
  }
  EXPECT_LT(alarms, beyond + beyond / 5);
}

}  // namespace
}  // namespace penstock
