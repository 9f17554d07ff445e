#include "penstock/image/move.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "penstock/image/picture.h"
#include "penstock/image/random_map.h"
#include "pictures.h"

namespace penstock {
namespace {

using image::ImageView;
using image::Move;
using image::Picture;

constexpr int kWidth = 30, kHeight = 20;

// An image whose pixel (x, y) is {x, y}.
std::vector<uint8_t> coordinates() {
  std::vector<uint8_t> pixels;
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) {
      pixels.push_back(static_cast<uint8_t>(x));
      pixels.push_back(static_cast<uint8_t>(y));
    }
  }
  return pixels;
}

std::vector<uint8_t> written(Picture& picture) {
  std::vector<uint8_t> pixels(static_cast<size_t>(picture.width() * picture.height() * 2));
  picture.write(reinterpret_cast<std::byte*>(pixels.data()));
  return pixels;
}

TEST(MoveTest, keypoints_boxes_and_masks_follow_whole_pixels) {
  const std::vector<uint8_t> pixels = coordinates();
  const ImageView view{pixels.data(), kWidth, kHeight, 2, kWidth * 2};
  Picture picture, mask;
  picture.open(view);
  picture.crop(3, 2, 24, 15);
  picture.flip(true, false);
  picture.turn(1);
  picture.pad(4, 5, 0, 1, 255);
  picture.turn(2);
  picture.turn(3);
  picture.warp({1, 0, 2, 0, 1, -1}, {.beyond = image::Beyond::kConstant, .value = 255});
  ASSERT_EQ(picture.moves().size(), 7U);
  mask.open(view);
  for (const Move& move : picture.moves()) mask.repeat(move, 255);
  const int width = picture.width(), height = picture.height();
  const std::vector<uint8_t> result = written(picture);
  EXPECT_EQ(written(mask), result);

  int seen = 0;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const uint8_t* from = &result[static_cast<size_t>(y * width + x) * 2];
      if (from[0] == 255) continue;
      ++seen;
      std::array<float, 2> point{static_cast<float>(from[0]), static_cast<float>(from[1])};
      std::array<float, 4> box{point[0], point[1], point[0] + 1, point[1] + 1};
      for (const Move& move : picture.moves()) {
        image::move_keypoints(move, 2, point);
        image::move_boxes(move, 4, box);
      }
      EXPECT_EQ(point, (std::array{static_cast<float>(x), static_cast<float>(y)}));
      EXPECT_EQ(box, (std::array{static_cast<float>(x), static_cast<float>(y),
                                 static_cast<float>(x + 1), static_cast<float>(y + 1)}));
    }
  }
  EXPECT_GT(seen, 300);
}

TEST(MoveTest, a_place_that_no_pixel_shows_is_outside) {
  Move flat{.kind = Move::Kind::kWarp, .in_width = 9, .in_height = 9, .width = 9, .height = 9};
  flat.map = {1, 1, 0, 1, 1, 0};  // all pixels of the result come from one diagonal
  std::array<float, 3> point{4, 2, 7};
  image::move_keypoints(flat, 3, point);
  EXPECT_EQ(point, (std::array<float, 3>{-1, -1, 7}));
  std::array<float, 5> box{1, 2, 3, 4, 7};
  image::move_boxes(flat, 5, box);
  EXPECT_EQ(box, (std::array<float, 5>{0, 0, 0, 0, 7}));
}

TEST(MoveTest, numbers_that_are_not_finite_stay) {
  const Move crop{.kind = Move::Kind::kCrop, .width = 5, .height = 5, .left = 2};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::array<float, 4> points{nan, 3, 6, 3};
  image::move_keypoints(crop, 2, points);
  EXPECT_TRUE(std::isnan(points[0]));
  EXPECT_EQ(points[1], 3);
  EXPECT_EQ(points[2], 4);
  std::array<float, 4> box{1, INFINITY, 6, 3};
  image::move_boxes(crop, 4, box);
  EXPECT_EQ(box, (std::array<float, 4>{1, INFINITY, 6, 3}));
}

TEST(MoveTest, a_turn_there_and_back_is_none) {
  Move turn{.kind = Move::Kind::kWarp, .in_width = 40, .in_height = 30, .width = 40, .height = 30};
  std::array<float, 2> point{13, 11};
  for (double degrees : {33.0, -33.0}) {
    turn.map = image::map_of({.degrees = degrees, .scale_x = 1, .scale_y = 1}, 19.5, 14.5);
    image::move_keypoints(turn, 2, point);
    EXPECT_EQ(degrees > 0, std::fabs(point[0] - 13) > 1);
  }
  EXPECT_NEAR(point[0], 13, 1e-4);
  EXPECT_NEAR(point[1], 11, 1e-4);
}

}  // namespace
}  // namespace penstock
