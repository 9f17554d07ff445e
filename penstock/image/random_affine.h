#pragma once

#include "penstock/base/random.h"
#include "penstock/image/random_crop.h"
#include "penstock/image/warp.h"

namespace penstock::image {

// Of random_affine. Angles in degrees.
struct AffineRanges {
  Range degrees;                            // clockwise
  double translate_x = 0, translate_y = 0;  // at most so much of the width, of the height
  Range scale{1, 1};                        // above 1 magnifies
  Range shear_x, shear_y;
};

// A random turn, move, size and shear around an image's centre, as torchvision's RandomAffine draws
// it: all uniform, moves rounded to whole pixels. The same bits on every machine.
AffineMap random_affine(int width, int height, const AffineRanges& ranges, RandomStream& rng);

}  // namespace penstock::image
