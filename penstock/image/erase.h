#pragma once

#include <optional>

#include "penstock/base/random.h"
#include "penstock/image/image.h"
#include "penstock/image/random_crop.h"

namespace penstock::image {

// A box of random area (a part of the image's) and aspect ratio (height by width, its logarithm
// uniform), as torchvision's RandomErasing chooses it; nothing after ten boxes that do not fit. The
// same bits on every machine. REQUIRED: 0 < least <= greatest of both.
//
// Zhong and others, "Random erasing data augmentation", AAAI 2020.
std::optional<CropBox> box_to_erase(int width, int height, const Range& area, const Range& ratio,
                                    RandomStream& rng);

// Sets all channels in a box. For uint8 the value is rounded, and limited to 0 to 255.
void erase(Image& image, const CropBox& box, double value);

}  // namespace penstock::image
