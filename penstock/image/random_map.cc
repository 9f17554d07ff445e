#include "penstock/image/random_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "penstock/image/portable_math.h"

namespace penstock::image {
namespace {

struct Point {
  double x, y;
};
using Corners = std::array<Point, 4>;
using Equations = std::array<std::array<double, 9>, 8>;

// Gauss' elimination. False: there is no single solution.
bool solve(Equations& rows) {
  for (size_t i = 0; i < 8; ++i) {
    size_t best = i;
    for (size_t j = i + 1; j < 8; ++j) {
      if (std::fabs(rows[j][i]) > std::fabs(rows[best][i])) best = j;
    }
    if (std::fabs(rows[best][i]) < 1e-9) return false;
    std::swap(rows[i], rows[best]);
    for (size_t j = 0; j < 8; ++j) {
      if (j == i) continue;
      const double factor = rows[j][i] / rows[i][i];
      for (size_t k = i; k < 9; ++k) rows[j][k] -= factor * rows[i][k];
    }
  }
  return true;
}

// The map that takes each of `from` to the same of `to`.
Map map_between(const Corners& from, const Corners& to) {
  Equations rows{};
  for (size_t i = 0; i < 4; ++i) {
    const auto [x, y] = from[i];
    rows[2 * i] = {x, y, 1, 0, 0, 0, -to[i].x * x, -to[i].x * y, to[i].x};
    rows[2 * i + 1] = {0, 0, 0, x, y, 1, -to[i].y * x, -to[i].y * y, to[i].y};
  }
  if (!solve(rows)) return {};
  std::array<double, 8> found;
  for (size_t i = 0; i < 8; ++i) found[i] = rows[i][8] / rows[i][i];
  return {found[0], found[1], found[2], found[3], found[4], found[5], found[6], found[7]};
}

}  // namespace

Map map_of(const Affine& affine, double centre_x, double centre_y) {
  // The image is scaled, sheared horizontally, then vertically, and turned; this is the inverse.
  const double angle = affine.degrees, shear_y = affine.shear_y;
  const double across = cosine_of_degrees(angle - shear_y) / cosine_of_degrees(shear_y);
  const double down = sine_of_degrees(angle - shear_y) / cosine_of_degrees(shear_y);
  const double tangent = tangent_of_degrees(affine.shear_x);
  const double a = (cosine_of_degrees(angle) - down * tangent) / affine.scale_x;
  const double b = (sine_of_degrees(angle) + across * tangent) / affine.scale_x;
  const double d = -down / affine.scale_y, e = across / affine.scale_y;
  const double x = centre_x + affine.move_x, y = centre_y + affine.move_y;
  return {a, b, centre_x - a * x - b * y, d, e, centre_y - d * x - e * y};
}

Map random_affine(int width, int height, const AffineRanges& ranges, RandomStream& rng) {
  const double most_x = ranges.translate_x * width, most_y = ranges.translate_y * height;
  Affine affine;
  affine.degrees = between(ranges.degrees, rng);
  affine.move_x = std::nearbyint(between({-most_x, most_x}, rng));
  affine.move_y = std::nearbyint(between({-most_y, most_y}, rng));
  affine.scale_x = between(ranges.scale, rng);
  affine.scale_y = ranges.scale_y ? between(*ranges.scale_y, rng) : affine.scale_x;
  affine.shear_x = between(ranges.shear_x, rng);
  affine.shear_y = between(ranges.shear_y, rng);
  return map_of(affine, (width - 1) / 2.0, (height - 1) / 2.0);
}

Map random_perspective(int width, int height, double distortion, RandomStream& rng) {
  const auto most_x = static_cast<uint64_t>(distortion * (width / 2));
  const auto most_y = static_cast<uint64_t>(distortion * (height / 2));
  const double right = width - 1, bottom = height - 1;
  const Corners corners{{{0, 0}, {right, 0}, {right, bottom}, {0, bottom}}};
  Corners moved = corners;
  for (Point& corner : moved) {
    const auto x = static_cast<double>(rng.below(most_x + 1));
    const auto y = static_cast<double>(rng.below(most_y + 1));
    corner.x += corner.x > 0 ? -x : x;
    corner.y += corner.y > 0 ? -y : y;
  }
  return map_between(moved, corners);
}

}  // namespace penstock::image
