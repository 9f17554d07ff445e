#include "penstock/image/picture.h"

#include <gtest/gtest.h>

#include <random>

#include "pictures.h"

namespace penstock {
namespace {

using image::Filter;
using image::Picture;
using testing::Bytes;
using testing::Pixels;

Pixels mirrored(const Pixels& pixels, bool x, bool y) {
  Pixels made = pixels;
  for (int row = 0; row < pixels.height; ++row) {
    for (int column = 0; column < pixels.width; ++column) {
      const uint8_t* from =
          pixels.at(x ? pixels.width - 1 - column : column, y ? pixels.height - 1 - row : row);
      std::copy_n(from, pixels.channels,
                  made.values.data() + (row * pixels.width + column) * pixels.channels);
    }
  }
  return made;
}

TEST(PictureTest, a_png_is_the_pixels_that_were_written) {
  for (int channels : {1, 3, 4}) {
    const Pixels pixels = testing::pixels_of(37, 23, channels);
    EXPECT_EQ(testing::decoded(testing::png_of(pixels), {.channels = channels}), pixels);
  }
}

TEST(PictureTest, a_cut_of_a_jpeg_is_that_of_the_whole) {
  std::mt19937 random(1);
  for (int sampling : {1, 2}) {
    for (bool progressive : {false, true}) {
      const Bytes bytes = testing::jpeg_of(testing::pixels_of(211, 167), progressive, sampling);
      const Pixels whole = testing::decoded(bytes);
      Picture picture;
      for (int i = 0; i < 40; ++i) {
        const int width = 1 + static_cast<int>(random() % 211);
        const int height = 1 + static_cast<int>(random() % 167);
        const int x = static_cast<int>(random() % static_cast<unsigned>(212 - width));
        const int y = static_cast<int>(random() % static_cast<unsigned>(168 - height));
        picture.open(bytes, {});
        picture.crop(x, y, width, height);
        EXPECT_EQ(testing::written(picture), testing::cut(whole, x, y, width, height))
            << x << ", " << y << ", " << width << " x " << height;
      }
    }
  }
}

TEST(PictureTest, noted_operations_give_what_single_ones_give) {
  const Pixels pixels = testing::pixels_of(90, 70);
  const Bytes bytes = testing::png_of(pixels);
  for (Filter filter :
       {Filter::kNearest, Filter::kBox, Filter::kBilinear, Filter::kBicubic, Filter::kLanczos}) {
    for (int flips = 0; flips < 4; ++flips) {
      Picture noted;
      noted.open(bytes, {});
      noted.crop(5, 7, 60, 50);
      noted.resize(33, 41, filter, true);
      noted.crop(3, 4, 30, 20);
      noted.flip(flips & 1, flips & 2);
      noted.crop(1, 2, 20, 10);
      const Pixels got = testing::written(noted);

      auto step = [](const Pixels& in, auto operation) {
        Picture picture;
        picture.open(in.view());
        operation(picture);
        return testing::written(picture);
      };
      Pixels wanted = testing::cut(pixels, 5, 7, 60, 50);
      wanted = step(wanted, [&](Picture& p) { p.resize(33, 41, filter, true); });
      wanted = testing::cut(wanted, 3, 4, 30, 20);
      wanted = mirrored(wanted, flips & 1, flips & 2);
      EXPECT_EQ(got, testing::cut(wanted, 1, 2, 20, 10)) << image::name_of(filter) << flips;
    }
  }
}

TEST(PictureTest, four_quarters_of_a_turn_are_none) {
  const Pixels pixels = testing::pixels_of(31, 17);
  Picture picture;
  picture.open(pixels.view());
  for (int i = 0; i < 4; ++i) picture.turn(1);
  EXPECT_EQ(testing::written(picture), pixels);
  picture.open(pixels.view());
  picture.turn(1);
  EXPECT_EQ(picture.width(), 17);
  const Pixels turned = testing::written(picture);
  for (int y = 0; y < turned.height; ++y) {
    for (int x = 0; x < turned.width; ++x) EXPECT_EQ(*turned.at(x, y), *pixels.at(30 - y, x));
  }
}

TEST(PictureTest, a_border_is_all_around) {
  const Pixels pixels = testing::pixels_of(9, 8);
  const Bytes bytes = testing::png_of(pixels);
  Picture picture;
  picture.open(bytes, {});
  picture.flip(true, false);
  picture.pad(1, 2, 3, 4, 77);
  const Pixels got = testing::written(picture);
  EXPECT_EQ(got.width, 13);
  EXPECT_EQ(got.height, 14);
  EXPECT_EQ(testing::cut(got, 1, 2, 9, 8), mirrored(pixels, true, false));
  EXPECT_EQ(*got.at(0, 5), 77);
  EXPECT_EQ(*got.at(12, 13), 77);
}

TEST(PictureTest, normalized_values_are_the_same_in_both_layouts) {
  const Pixels pixels = testing::pixels_of(19, 11);
  const auto normalization = std::make_shared<const image::Normalization>(
      std::vector<float>{100, 110, 120}, std::vector<float>{50, 60, 70});
  std::vector<float> last(19 * 11 * 3), first(last.size());
  Picture picture;
  picture.open(pixels.view());
  picture.normalize(normalization);
  picture.write(reinterpret_cast<std::byte*>(last.data()));
  picture.open(pixels.view());
  picture.to_chw();
  picture.normalize(normalization);
  picture.write(reinterpret_cast<std::byte*>(first.data()));
  for (size_t i = 0; i < 19 * 11; ++i) {
    for (size_t c = 0; c < 3; ++c) {
      const float wanted =
          (static_cast<float>(pixels.values[i * 3 + c]) - (100 + 10 * static_cast<float>(c))) /
          (50 + 10 * static_cast<float>(c));
      EXPECT_EQ(last[i * 3 + c], wanted);
      EXPECT_EQ(first[c * 19 * 11 + i], wanted);
    }
  }
}

TEST(PictureTest, a_smaller_image_is_decoded_for_a_smaller_result) {
  const Bytes bytes = testing::jpeg_of(testing::pixels_of(400, 300));
  Picture good, fast;
  for (int size : {210, 140, 70, 30}) {
    good.open(bytes, {});
    good.crop(33, 21, 301, 222);
    good.resize(size, size, Filter::kBilinear, true);
    fast.open(bytes, {.fast = true});
    fast.crop(33, 21, 301, 222);
    fast.resize(size, size, Filter::kBilinear, true);
    const Pixels one = testing::written(good), other = testing::written(fast);
    ASSERT_EQ(one.values.size(), other.values.size());
    double difference = 0;
    for (size_t i = 0; i < one.values.size(); ++i)
      difference += std::abs(one.values[i] - other.values[i]);
    EXPECT_LT(difference / static_cast<double>(one.values.size()), 6) << size;
  }
}

}  // namespace
}  // namespace penstock
