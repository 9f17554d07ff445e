#include <gtest/gtest.h>

#include <cmath>

#include "penstock/image/random_box.h"

namespace penstock {
namespace {

using image::CropBox;

TEST(RandomCropTest, boxes_lie_within_the_image_and_have_the_area_and_ratio) {
  double areas = 0, ratios = 0;
  constexpr int kTimes = 4000;
  for (int i = 0; i < kTimes; ++i) {
    RandomStream rng({1, 2, static_cast<uint64_t>(i), 3});
    const CropBox box = image::random_part(500, 400, {0.1, 0.5}, {0.5, 2}, rng);
    ASSERT_TRUE(box.x >= 0 && box.y >= 0 && box.width >= 1 && box.height >= 1);
    ASSERT_TRUE(box.x + box.width <= 500 && box.y + box.height <= 400);
    const double area = box.width * box.height / 200000.0;
    const double ratio = static_cast<double>(box.width) / box.height;
    ASSERT_TRUE(area > 0.098 && area < 0.502 && ratio > 0.48 && ratio < 2.05);
    areas += area;
    ratios += std::log(ratio);
  }
  EXPECT_NEAR(areas / kTimes, 0.3, 0.02);
  EXPECT_NEAR(ratios / kTimes, 0, 0.03);
}

TEST(RandomCropTest, what_never_fits_is_the_largest_box_in_the_middle) {
  RandomStream rng({1, 2, 3, 4});
  // Square boxes of at least nine tenths of a very wide image.
  const CropBox box = image::random_part(1000, 10, {0.9, 1}, {1, 1}, rng);
  EXPECT_EQ(box.width, 10);
  EXPECT_EQ(box.height, 10);
  EXPECT_EQ(box.x, 495);
  const CropBox tall = image::random_part(10, 1000, {0.9, 1}, {0.5, 1}, rng);
  EXPECT_EQ(tall.width, 10);
  EXPECT_EQ(tall.height, 20);
  EXPECT_EQ(tall.y, 490);
}

TEST(RandomCropTest, an_image_of_one_pixel_has_one_box) {
  RandomStream rng({1, 2, 3, 4});
  const CropBox box = image::random_part(1, 1, {0.08, 1}, {0.75, 1.33}, rng);
  EXPECT_EQ(box.width, 1);
  EXPECT_EQ(box.height, 1);
}

// The same on every machine, as states and other implementations rely on it.
TEST(RandomCropTest, boxes_of_a_key_stay_what_they_are) {
  RandomStream rng({7, 1, 42, 3});
  const CropBox box = image::random_part(640, 480, {0.08, 1}, {0.75, 4.0 / 3}, rng);
  EXPECT_EQ(box.x, 170);
  EXPECT_EQ(box.y, 93);
  EXPECT_EQ(box.width, 419);
  EXPECT_EQ(box.height, 317);
}

}  // namespace
}  // namespace penstock
