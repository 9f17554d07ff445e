#pragma once

#include "penstock/base/random.h"

namespace penstock::image {

struct CropBox {
  int x = 0, y = 0, width = 0, height = 0;
};

// Any box of that size within an image, all equally likely. REQUIRED: it fits.
CropBox random_box(int width, int height, int box_width, int box_height, RandomStream& rng);

// The least and the greatest value.
struct Range {
  double least = 0, greatest = 0;
};
double between(const Range& range, RandomStream& rng);  // uniform

// A box of a random part of the image's area and a random aspect ratio (width by height), as
// torchvision's RandomResizedCrop chooses it: `area` of the image's area, uniform; the ratio's
// logarithm uniform; after ten boxes that do not fit the largest box in the middle whose ratio is
// within the range. The same bits on every machine. REQUIRED: 0 < least <= greatest of both.
//
// Szegedy and others, "Going deeper with convolutions", CVPR 2015.
CropBox random_part(int width, int height, const Range& area, const Range& ratio,
                    RandomStream& rng);

}  // namespace penstock::image
