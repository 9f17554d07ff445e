#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "penstock/base/random.h"
#include "penstock/image/image.h"

// Boxes within an image, drawn at random, and what is done with them: the same bits on every
// machine.
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

// A box of random area (a part of the image's) and aspect ratio (height by width, its logarithm
// uniform), as torchvision's RandomErasing chooses it; nothing after ten boxes that do not fit. The
// same bits on every machine. REQUIRED: 0 < least <= greatest of both.
//
// Zhong and others, "Random erasing data augmentation", AAAI 2020.
std::optional<CropBox> box_to_erase(int width, int height, const Range& area, const Range& ratio,
                                    RandomStream& rng);

// Sets all channels in a box. For uint8 the value is rounded, and limited to 0 to 255.
void erase(Image& image, const CropBox& box, double value);

// From the distribution Beta(alpha, alpha), in [0, 1]. REQUIRED: alpha > 0.
//
// Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 2000.
double random_proportion(double alpha, RandomStream& rng);

// share * one + (1 - share) * other; bytes are rounded.
void mix(const uint8_t* one, const uint8_t* other, double share, uint8_t* to, size_t n);
void mix(const float* one, const float* other, double share, float* to, size_t n);

// A box with about the area 1 - share of an image's, around a random point, as far as it lies
// within the image; it may be empty.
//
// Yun and others, "CutMix: regularization strategy to train strong classifiers with localizable
// features", ICCV 2019.
CropBox box_to_mix(int width, int height, double share, RandomStream& rng);

}  // namespace penstock::image
