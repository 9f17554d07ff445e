#pragma once

#include <array>
#include <cstdint>

#include "penstock/base/random.h"
#include "penstock/image/image.h"
#include "penstock/image/random_box.h"

// Operations on all pixels of uint8 images, in place, as Pillow's ImageEnhance and ImageOps (and
// torchvision) compute them: 1 channel is grey, 3 are red, green and blue; the last one of 2 or 4
// is alpha, which stays. The same bits on every machine. REQUIRED: 1 to 4 channels.
namespace penstock::image {

// A factor of 1 changes nothing, 0 leaves black, the mean grey, grey, or a smooth image.
void adjust_brightness(Image& image, double factor);
void adjust_contrast(Image& image, double factor);
void adjust_saturation(Image& image, double factor);
void adjust_sharpness(Image& image, double factor);
// Turns the hue by a part of a whole turn.
void adjust_hue(Image& image, double turn);
void adjust_gamma(Image& image, double gamma);  // 255 (x / 255)^gamma
// Adds a number to all colours and rounds; results stay within the image's least and greatest
// value, as in Keras' random_channel_shift.
void shift_channels(Image& image, double by);

void invert(Image& image);
void posterize(Image& image, int bits);      // keeps the upper bits
void solarize(Image& image, int threshold);  // inverts the values from it on
// The least value of each channel becomes 0, the greatest 255.
void autocontrast(Image& image);
// All values of a channel become equally frequent.
void equalize(Image& image);

// Of color_jitter: factors; hue in turns.
struct JitterRanges {
  Range brightness{1, 1}, contrast{1, 1}, saturation{1, 1}, hue;
};
struct Jitter {
  std::array<double, 4> factors;  // brightness, contrast, saturation, hue
  std::array<int, 4> order;       // numbers of these, in the order of their application
};
// As torchvision's ColorJitter.
Jitter draw_jitter(const JitterRanges& ranges, RandomStream& rng);
void color_jitter(Image& image, const Jitter& jitter);

// A Gaussian of `size` x `size` pixels over a uint8 image, in place, as torchvision's
// gaussian_blur: the image is mirrored at its border, without the border itself. The bits are the
// same on every machine, and differ by 1 at most from the exact ones. REQUIRED: size is odd; sigma
// > 0.
void gaussian_blur(Image& image, int size, double sigma);

}  // namespace penstock::image
