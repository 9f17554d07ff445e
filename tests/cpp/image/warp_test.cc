#include "penstock/image/warp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "penstock/image/portable_math.h"
#include "penstock/image/random_map.h"
#include "pictures.h"

namespace penstock {
namespace {

using image::Beyond;
using image::ImageView;
using image::Map;
using image::Sampling;
using image::WarpOptions;
using testing::Pixels;

int64_t floor_mod(int64_t place, int64_t period) { return (place % period + period) % period; }

// A pixel beyond the border by its definition; `wrap` is not defined for single pixels.
double pixel(const Pixels& in, int64_t x, int64_t y, int c, Beyond beyond) {
  auto place = [beyond](int64_t at, int size) {
    if (beyond != Beyond::kReflect) return std::clamp<int64_t>(at, 0, size - 1);
    at = floor_mod(at, int64_t{2} * size);
    return at < size ? at : 2 * size - 1 - at;
  };
  return in.at(static_cast<int>(place(x, in.width)), static_cast<int>(place(y, in.height)))[c];
}

double wrapped(double at, int size) {
  const double period = size - 1;
  if (period == 0) return 0;
  return at < 0 || at > period ? at - period * std::floor(at / period) : at;
}

// The value at a coordinate, in doubles; NaN near the border of a constant, where rounding decides.
double value_at(const Pixels& in, double x, double y, int c, const WarpOptions& options) {
  const double right = in.width - 1, bottom = in.height - 1;
  if (options.beyond == Beyond::kConstant) {
    constexpr double kNear = 1e-4;
    for (double off : {x, right - x, y, bottom - y}) {
      if (std::fabs(off) < kNear) return NAN;
    }
    if (x < 0 || x > right || y < 0 || y > bottom) return options.value;
  }
  if (options.beyond == Beyond::kWrap) {
    x = wrapped(x, in.width);
    y = wrapped(y, in.height);
    for (double off : {x, right - x, y, bottom - y}) {
      if (std::fabs(off) < 1e-4) return NAN;  // either end
    }
  }
  const double left = std::floor(x), top = std::floor(y), wx = x - left, wy = y - top;
  auto at = [&](int dx, int dy) {
    return pixel(in, static_cast<int64_t>(left) + dx, static_cast<int64_t>(top) + dy, c,
                 options.beyond);
  };
  return (at(0, 0) * (1 - wx) + at(1, 0) * wx) * (1 - wy) +
         (at(0, 1) * (1 - wx) + at(1, 1) * wx) * wy;
}

void check(const Pixels& in, const Map& map, const WarpOptions& options) {
  image::Warper warper;
  warper.begin(in.view(), map, options);
  // Exactly as much memory as is written.
  std::vector<uint8_t> row(static_cast<size_t>(in.width * in.channels));
  for (int y = 0; y < in.height; ++y) {
    warper.row(y, 0, in.width, row.data());
    for (int x = 0; x < in.width; ++x) {
      const double w = map.g * x + map.h * y + 1;
      const double at_x = (map.a * x + map.b * y + map.c) / w;
      const double at_y = (map.d * x + map.e * y + map.f) / w;
      if (std::fabs(w) < 1e-6) continue;  // the horizon
      for (int c = 0; c < in.channels; ++c) {
        const double wanted = value_at(in, at_x, at_y, c, options);
        if (std::isnan(wanted)) continue;
        ASSERT_NEAR(row[static_cast<size_t>(x * in.channels + c)], wanted, 1.0)
            << x << ", " << y << " of " << in.width << " x " << in.height << " x " << in.channels
            << " at " << at_x << ", " << at_y << ", " << image::name_of(options.beyond);
      }
    }
    // A part of the row is that part of it.
    for (const auto& [first, end] : {std::pair(in.width / 3, in.width - in.width / 4),
                                     std::pair(in.width / 2, in.width / 2 + 1)}) {
      std::vector<uint8_t> part(static_cast<size_t>((end - first) * in.channels));
      warper.row(y, first, end, part.data());
      ASSERT_TRUE(std::equal(part.begin(), part.end(), row.begin() + first * in.channels));
    }
  }
}

TEST(WarpTest, every_pixel_is_the_exact_one_within_one) {
  std::mt19937 random(1);
  auto uniform = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  for (int i = 0; i < 300; ++i) {
    const int width = 1 + static_cast<int>(random() % 40);
    const int height = 1 + static_cast<int>(random() % 40);
    const Pixels in = testing::pixels_of(width, height, 1 + static_cast<int>(random() % 5));
    const image::Affine affine{uniform(-180, 180), uniform(-20, 20), uniform(-20, 20),
                               uniform(0.2, 4),    uniform(0.2, 4),  uniform(-40, 40),
                               uniform(-40, 40)};
    const Map map = image::map_of(affine, width / 2.0, height / 2.0);
    for (Beyond beyond : {Beyond::kNearest, Beyond::kConstant, Beyond::kReflect, Beyond::kWrap}) {
      check(in, map, {Sampling::kBilinear, beyond, 77});
      if (::testing::Test::HasFatalFailure()) return;
    }
    RandomStream rng({1, 2, static_cast<uint64_t>(i), 3});
    check(in, image::random_perspective(width, height, 0.8, rng),
          {Sampling::kBilinear, Beyond::kReflect, 0});
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(WarpTest, extreme_maps_end_and_stay_within_the_image) {
  const Pixels in = testing::pixels_of(17, 9);
  std::vector<uint8_t> row(17 * 3);
  for (Beyond beyond : {Beyond::kNearest, Beyond::kConstant, Beyond::kReflect, Beyond::kWrap}) {
    for (Sampling sampling : {Sampling::kNearest, Sampling::kBilinear}) {
      for (const Map& map : {Map{4096, 4096, -1e8, 4096, -4096, 1e8}, Map{0, 0, 8, 0, 0, 8.25},
                             Map{1, 0, 0, 0, 1, 0, -0.1, -0.1}, Map{1, 0, 0, 0, 1, 0, 1e9, -1e9}}) {
        image::Warper warper;
        warper.begin(in.view(), map, {sampling, beyond, 0});
        for (int y = 0; y < 9; ++y) warper.row(y, 0, 17, row.data());
      }
    }
  }
}

TEST(WarpTest, sines_are_exact_at_quarters_and_near_the_librarys_elsewhere) {
  for (int k = -9; k <= 9; ++k) {
    const double wanted[] = {0, 1, 0, -1};
    EXPECT_EQ(image::sine_of_degrees(90.0 * k), wanted[floor_mod(k, 4)]) << k;
    EXPECT_EQ(image::cosine_of_degrees(90.0 * k), wanted[floor_mod(k + 1, 4)]) << k;
  }
  for (double angle = -720; angle < 720; angle += 0.37) {
    EXPECT_NEAR(image::sine_of_degrees(angle), std::sin(angle * M_PI / 180), 1e-14);
  }
}

}  // namespace
}  // namespace penstock
