#include "penstock/image/rand_augment.h"

#include <cmath>

#include "penstock/image/colour.h"
#include "penstock/image/random_map.h"

namespace penstock::image {
namespace {

enum class Augmentation : uint8_t {
  kIdentity,
  kShearX,
  kShearY,
  kTranslateX,
  kTranslateY,
  kRotate,
  kBrightness,
  kColour,
  kContrast,
  kSharpness,
  kPosterize,
  kSolarize,
  kAutocontrast,
  kEqualize,
};
constexpr uint64_t kAugmentations = 14;

// `strength`: 0 to 1.
void augment(Picture& picture, Augmentation augmentation, double strength, double sign,
             const WarpOptions& options) {
  const double factor = 1 + sign * 0.9 * strength;
  const double shear = sign * 0.3 * strength;
  constexpr double kMostMove = 150.0 / 331;
  Affine affine;
  switch (augmentation) {
    case Augmentation::kIdentity:
      return;
    case Augmentation::kShearX:  // around the corner of the image
      return picture.warp({1, shear, shear / 2, 0, 1, 0}, options);
    case Augmentation::kShearY:
      return picture.warp({1, 0, 0, shear, 1, shear / 2}, options);
    case Augmentation::kTranslateX:
      affine.move_x = sign * std::trunc(kMostMove * picture.width() * strength);
      break;
    case Augmentation::kTranslateY:
      affine.move_y = sign * std::trunc(kMostMove * picture.height() * strength);
      break;
    case Augmentation::kRotate:
      affine.degrees = sign * 30 * strength;
      break;
    case Augmentation::kBrightness:
      return adjust_brightness(picture.edited(), factor);
    case Augmentation::kColour:
      return adjust_saturation(picture.edited(), factor);
    case Augmentation::kContrast:
      return adjust_contrast(picture.edited(), factor);
    case Augmentation::kSharpness:
      return adjust_sharpness(picture.edited(), factor);
    case Augmentation::kPosterize:
      return posterize(picture.edited(), 8 - static_cast<int>(std::nearbyint(4 * strength)));
    case Augmentation::kSolarize:
      return solarize(picture.edited(), static_cast<int>(std::ceil(255 * (1 - strength))));
    case Augmentation::kAutocontrast:
      return autocontrast(picture.edited());
    case Augmentation::kEqualize:
      return equalize(picture.edited());
  }
  picture.warp(map_of(affine, (picture.width() - 1) / 2.0, (picture.height() - 1) / 2.0), options);
}

}  // namespace

void rand_augment(Picture& picture, int n, int magnitude, const WarpOptions& options,
                  RandomStream& rng) {
  const double strength = static_cast<double>(magnitude) / (kMagnitudes - 1);
  for (int i = 0; i < n; ++i) {
    const auto augmentation = static_cast<Augmentation>(rng.below(kAugmentations));
    const double sign = rng.uniform() < 0.5 ? -1 : 1;
    augment(picture, augmentation, strength, sign, options);
  }
}

}  // namespace penstock::image
