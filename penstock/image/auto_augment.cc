#include "penstock/image/auto_augment.h"

#include <array>
#include <cmath>
#include <utility>

#include "penstock/image/adjust.h"
#include "penstock/image/random_map.h"

namespace penstock::image {
namespace {

// rand_augment and trivial_augment_wide choose among all but the last one.
enum Augmentation : uint8_t {
  kOpIdentity,
  kOpShearX,
  kOpShearY,
  kOpTranslateX,
  kOpTranslateY,
  kOpRotate,
  kOpBrightness,
  kOpColour,
  kOpContrast,
  kOpSharpness,
  kOpPosterize,
  kOpSolarize,
  kOpAutocontrast,
  kOpEqualize,
  kOpInvert,
};
constexpr uint64_t kAugmentations = kOpInvert;

// What an operation does at the strength 1.
struct Most {
  double shear = 0.3;
  double move = 150.0 / 331;  // of the width, the height
  double move_pixels = 0;     // and so many pixels
  double degrees = 30;
  double factor = 0.9;
  double bits = 4;
};
constexpr Most kWide{
    .shear = 0.99, .move = 0, .move_pixels = 32, .degrees = 135, .factor = 0.99, .bits = 6};

// `strength`: 0 to 1.
void augment(Picture& picture, Augmentation augmentation, double strength, double sign,
             const Most& most, const WarpOptions& options) {
  const double factor = 1 + sign * most.factor * strength;
  const double shear = sign * most.shear * strength;
  const auto move = [&](int side) {
    return sign * std::trunc((most.move * side + most.move_pixels) * strength);
  };
  Affine affine;
  switch (augmentation) {
    case kOpIdentity:
      return;
    case kOpShearX:  // around the corner of the image
      return picture.warp({1, shear, shear / 2, 0, 1, 0}, options);
    case kOpShearY:
      return picture.warp({1, 0, 0, shear, 1, shear / 2}, options);
    case kOpTranslateX:
      affine.move_x = move(picture.width());
      break;
    case kOpTranslateY:
      affine.move_y = move(picture.height());
      break;
    case kOpRotate:
      affine.degrees = sign * most.degrees * strength;
      break;
    case kOpBrightness:
      return adjust_brightness(picture.edited(), factor);
    case kOpColour:
      return adjust_saturation(picture.edited(), factor);
    case kOpContrast:
      return adjust_contrast(picture.edited(), factor);
    case kOpSharpness:
      return adjust_sharpness(picture.edited(), factor);
    case kOpPosterize:
      return posterize(picture.edited(),
                       8 - static_cast<int>(std::nearbyint(most.bits * strength)));
    case kOpSolarize:
      return solarize(picture.edited(), static_cast<int>(std::ceil(255 * (1 - strength))));
    case kOpAutocontrast:
      return autocontrast(picture.edited());
    case kOpEqualize:
      return equalize(picture.edited());
    case kOpInvert:
      return invert(picture.edited());
  }
  picture.warp(map_of(affine, (picture.width() - 1) / 2.0, (picture.height() - 1) / 2.0), options);
}

// A part of a policy: an operation, its probability in tenths, and its magnitude from 0 to 9.
struct Choice {
  Augmentation augmentation;
  int tenths, magnitude;
};
using Policy = std::array<std::array<Choice, 2>, 25>;
constexpr int kPolicyMagnitudes = 10;

// The tables of the paper's appendix.
constexpr Policy kImageNetPolicy{{
    {{{kOpPosterize, 4, 8}, {kOpRotate, 6, 9}}},  {{{kOpSolarize, 6, 5}, {kOpAutocontrast, 6, 0}}},
    {{{kOpEqualize, 8, 0}, {kOpEqualize, 6, 0}}}, {{{kOpPosterize, 6, 7}, {kOpPosterize, 6, 6}}},
    {{{kOpEqualize, 4, 0}, {kOpSolarize, 2, 4}}}, {{{kOpEqualize, 4, 0}, {kOpRotate, 8, 8}}},
    {{{kOpSolarize, 6, 3}, {kOpEqualize, 6, 0}}}, {{{kOpPosterize, 8, 5}, {kOpEqualize, 10, 0}}},
    {{{kOpRotate, 2, 3}, {kOpSolarize, 6, 8}}},   {{{kOpEqualize, 6, 0}, {kOpPosterize, 4, 6}}},
    {{{kOpRotate, 8, 8}, {kOpColour, 4, 0}}},     {{{kOpRotate, 4, 9}, {kOpEqualize, 6, 0}}},
    {{{kOpEqualize, 0, 0}, {kOpEqualize, 8, 0}}}, {{{kOpInvert, 6, 0}, {kOpEqualize, 10, 0}}},
    {{{kOpColour, 6, 4}, {kOpContrast, 10, 8}}},  {{{kOpRotate, 8, 8}, {kOpColour, 10, 2}}},
    {{{kOpColour, 8, 8}, {kOpSolarize, 8, 7}}},   {{{kOpSharpness, 4, 7}, {kOpInvert, 6, 0}}},
    {{{kOpShearX, 6, 5}, {kOpEqualize, 10, 0}}},  {{{kOpColour, 4, 0}, {kOpEqualize, 6, 0}}},
    {{{kOpEqualize, 4, 0}, {kOpSolarize, 2, 4}}}, {{{kOpSolarize, 6, 5}, {kOpAutocontrast, 6, 0}}},
    {{{kOpInvert, 6, 0}, {kOpEqualize, 10, 0}}},  {{{kOpColour, 6, 4}, {kOpContrast, 10, 8}}},
    {{{kOpEqualize, 8, 0}, {kOpEqualize, 6, 0}}},
}};
constexpr Policy kCifar10Policy{{
    {{{kOpInvert, 1, 0}, {kOpContrast, 2, 6}}},
    {{{kOpRotate, 7, 2}, {kOpTranslateX, 3, 9}}},
    {{{kOpSharpness, 8, 1}, {kOpSharpness, 9, 3}}},
    {{{kOpShearY, 5, 8}, {kOpTranslateY, 7, 9}}},
    {{{kOpAutocontrast, 5, 0}, {kOpEqualize, 9, 0}}},
    {{{kOpShearY, 2, 7}, {kOpPosterize, 3, 7}}},
    {{{kOpColour, 4, 3}, {kOpBrightness, 6, 7}}},
    {{{kOpSharpness, 3, 9}, {kOpBrightness, 7, 9}}},
    {{{kOpEqualize, 6, 0}, {kOpEqualize, 5, 0}}},
    {{{kOpContrast, 6, 7}, {kOpSharpness, 6, 5}}},
    {{{kOpColour, 7, 7}, {kOpTranslateX, 5, 8}}},
    {{{kOpEqualize, 3, 0}, {kOpAutocontrast, 4, 0}}},
    {{{kOpTranslateY, 4, 3}, {kOpSharpness, 2, 6}}},
    {{{kOpBrightness, 9, 6}, {kOpColour, 2, 8}}},
    {{{kOpSolarize, 5, 2}, {kOpInvert, 0, 0}}},
    {{{kOpEqualize, 2, 0}, {kOpAutocontrast, 6, 0}}},
    {{{kOpEqualize, 2, 0}, {kOpEqualize, 6, 0}}},
    {{{kOpColour, 9, 9}, {kOpEqualize, 6, 0}}},
    {{{kOpAutocontrast, 8, 0}, {kOpSolarize, 2, 8}}},
    {{{kOpBrightness, 1, 3}, {kOpColour, 7, 0}}},
    {{{kOpSolarize, 4, 5}, {kOpAutocontrast, 9, 0}}},
    {{{kOpTranslateY, 9, 9}, {kOpTranslateY, 7, 9}}},
    {{{kOpAutocontrast, 9, 0}, {kOpSolarize, 8, 3}}},
    {{{kOpEqualize, 8, 0}, {kOpInvert, 1, 0}}},
    {{{kOpTranslateY, 7, 9}, {kOpAutocontrast, 9, 0}}},
}};
constexpr Policy kSvhnPolicy{{
    {{{kOpShearX, 9, 4}, {kOpInvert, 2, 0}}},       {{{kOpShearY, 9, 8}, {kOpInvert, 7, 0}}},
    {{{kOpEqualize, 6, 0}, {kOpSolarize, 6, 6}}},   {{{kOpInvert, 9, 0}, {kOpEqualize, 6, 0}}},
    {{{kOpEqualize, 6, 0}, {kOpRotate, 9, 3}}},     {{{kOpShearX, 9, 4}, {kOpAutocontrast, 8, 0}}},
    {{{kOpShearY, 9, 8}, {kOpInvert, 4, 0}}},       {{{kOpShearY, 9, 5}, {kOpSolarize, 2, 6}}},
    {{{kOpInvert, 9, 0}, {kOpAutocontrast, 8, 0}}}, {{{kOpEqualize, 6, 0}, {kOpRotate, 9, 3}}},
    {{{kOpShearX, 9, 4}, {kOpSolarize, 3, 3}}},     {{{kOpShearY, 8, 8}, {kOpInvert, 7, 0}}},
    {{{kOpEqualize, 9, 0}, {kOpTranslateY, 6, 6}}}, {{{kOpInvert, 9, 0}, {kOpEqualize, 6, 0}}},
    {{{kOpContrast, 3, 3}, {kOpRotate, 8, 4}}},     {{{kOpInvert, 8, 0}, {kOpTranslateY, 0, 2}}},
    {{{kOpShearY, 7, 6}, {kOpSolarize, 4, 8}}},     {{{kOpInvert, 6, 0}, {kOpRotate, 8, 4}}},
    {{{kOpShearY, 3, 7}, {kOpTranslateX, 9, 3}}},   {{{kOpShearX, 1, 6}, {kOpInvert, 6, 0}}},
    {{{kOpSolarize, 7, 2}, {kOpTranslateY, 6, 7}}}, {{{kOpShearY, 8, 4}, {kOpInvert, 8, 0}}},
    {{{kOpShearX, 7, 9}, {kOpTranslateY, 8, 3}}},   {{{kOpShearY, 8, 5}, {kOpAutocontrast, 7, 0}}},
    {{{kOpShearX, 7, 2}, {kOpInvert, 1, 0}}},
}};

const Policy& table_of(AugmentPolicy policy) {
  switch (policy) {
    case AugmentPolicy::kCifar10:
      return kCifar10Policy;
    case AugmentPolicy::kSvhn:
      return kSvhnPolicy;
    case AugmentPolicy::kImageNet:
      break;
  }
  return kImageNetPolicy;
}

constexpr std::pair<std::string_view, AugmentPolicy> kPolicies[] = {
    {"imagenet", AugmentPolicy::kImageNet},
    {"cifar10", AugmentPolicy::kCifar10},
    {"svhn", AugmentPolicy::kSvhn}};

double random_sign(RandomStream& rng) { return rng.uniform() < 0.5 ? -1 : 1; }

}  // namespace

std::optional<AugmentPolicy> augment_policy_named(std::string_view name) {
  for (const auto& [known, policy] : kPolicies) {
    if (known == name) return policy;
  }
  return std::nullopt;
}

std::string_view name_of(AugmentPolicy policy) {
  return kPolicies[static_cast<size_t>(policy)].first;
}

void rand_augment(Picture& picture, int n, int magnitude, const WarpOptions& options,
                  RandomStream& rng) {
  const double strength = static_cast<double>(magnitude) / (kMagnitudes - 1);
  for (int i = 0; i < n; ++i) {
    const auto augmentation = static_cast<Augmentation>(rng.below(kAugmentations));
    augment(picture, augmentation, strength, random_sign(rng), {}, options);
  }
}

void trivial_augment_wide(Picture& picture, const WarpOptions& options, RandomStream& rng) {
  const auto augmentation = static_cast<Augmentation>(rng.below(kAugmentations));
  const double strength = static_cast<double>(rng.below(kMagnitudes)) / (kMagnitudes - 1);
  augment(picture, augmentation, strength, random_sign(rng), kWide, options);
}

void auto_augment(Picture& picture, AugmentPolicy policy, const WarpOptions& options,
                  RandomStream& rng) {
  const Policy& table = table_of(policy);
  for (const Choice& choice : table[rng.below(table.size())]) {
    const bool chosen = rng.uniform() < choice.tenths / 10.0;
    const double sign = random_sign(rng);
    const double strength = static_cast<double>(choice.magnitude) / (kPolicyMagnitudes - 1);
    if (chosen) augment(picture, choice.augmentation, strength, sign, {}, options);
  }
}

}  // namespace penstock::image
