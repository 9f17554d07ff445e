#pragma once

#include <optional>

#include "penstock/base/random.h"
#include "penstock/image/random_box.h"
#include "penstock/image/warp.h"

// Maps for Warper, the same bits on every machine. Angles are in degrees.
namespace penstock::image {

// A turn, move, size and shear around a centre, as torchvision's affine.
struct Affine {
  double degrees = 0;  // clockwise
  double move_x = 0, move_y = 0;
  double scale_x = 1, scale_y = 1;  // above 1 magnifies; before the turn
  double shear_x = 0, shear_y = 0;
};
Map map_of(const Affine& affine, double centre_x, double centre_y);

// Of random_affine.
struct AffineRanges {
  Range degrees;                            // clockwise
  double translate_x = 0, translate_y = 0;  // at most so much of the width, of the height
  Range scale{1, 1};                        // above 1 magnifies
  std::optional<Range> scale_y;             // nullopt: along y by the same number as along x
  Range shear_x, shear_y;
};

// Around an image's centre, as torchvision's RandomAffine draws it: all uniform, moves rounded to
// whole pixels.
Map random_affine(int width, int height, const AffineRanges& ranges, RandomStream& rng);

// The corners move inwards by up to `distortion` of half the width and height, as torchvision's
// RandomPerspective draws it.
Map random_perspective(int width, int height, double distortion, RandomStream& rng);

}  // namespace penstock::image
