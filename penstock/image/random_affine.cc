#include "penstock/image/random_affine.h"

#include <cmath>

#include "penstock/image/portable_math.h"

namespace penstock::image {

AffineMap random_affine(int width, int height, const AffineRanges& ranges, RandomStream& rng) {
  const double most_x = ranges.translate_x * width, most_y = ranges.translate_y * height;
  const double angle = between(ranges.degrees, rng);
  const double move_x = std::nearbyint(between({-most_x, most_x}, rng));
  const double move_y = std::nearbyint(between({-most_y, most_y}, rng));
  const double scale = between(ranges.scale, rng);
  const double shear_x = between(ranges.shear_x, rng);
  const double shear_y = between(ranges.shear_y, rng);

  // The image is sheared horizontally, then vertically, turned and scaled; this is the inverse.
  const double across = cosine_of_degrees(angle - shear_y) / cosine_of_degrees(shear_y);
  const double down = sine_of_degrees(angle - shear_y) / cosine_of_degrees(shear_y);
  const double tangent = tangent_of_degrees(shear_x);
  const double a = (cosine_of_degrees(angle) - down * tangent) / scale;
  const double b = (sine_of_degrees(angle) + across * tangent) / scale;
  const double d = -down / scale, e = across / scale;
  const double centre_x = (width - 1) / 2.0, centre_y = (height - 1) / 2.0;
  const double x = centre_x + move_x, y = centre_y + move_y;
  return {a, b, centre_x - a * x - b * y, d, e, centre_y - d * x - e * y};
}

}  // namespace penstock::image
