#pragma once

#include "penstock/image/image.h"

namespace penstock::image {

// A Gaussian of `size` x `size` pixels over a uint8 image, in place, as torchvision's
// gaussian_blur: the image is mirrored at its border, without the border itself. The bits are the
// same on every machine, and differ by 1 at most from the exact ones. REQUIRED: size is odd; sigma
// > 0.
void gaussian_blur(Image& image, int size, double sigma);

}  // namespace penstock::image
