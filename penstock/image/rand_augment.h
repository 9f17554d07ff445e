#pragma once

#include "penstock/base/random.h"
#include "penstock/image/picture.h"

namespace penstock::image {

inline constexpr int kMagnitudes = 31;  // of rand_augment: 0 to 30

// `n` operations of torchvision's RandAugment, chosen at random, at this magnitude. The same bits
// on every machine. REQUIRED: uint8, 1 to 4 channels.
//
// Cubuk and others, "RandAugment: practical automated data augmentation with a reduced search
// space", NeurIPS 2020.
void rand_augment(Picture& picture, int n, int magnitude, const WarpOptions& options,
                  RandomStream& rng);

}  // namespace penstock::image
