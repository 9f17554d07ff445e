#pragma once

#include <cstddef>
#include <cstdint>

#include "penstock/base/random.h"
#include "penstock/image/random_crop.h"

// Two images as one. The same bits on every machine.
namespace penstock::image {

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
