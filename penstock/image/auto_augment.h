#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "penstock/base/random.h"
#include "penstock/image/picture.h"

// Operations that are chosen at random from a list, with torchvision's magnitudes. The same bits on
// every machine. REQUIRED: uint8, 1 to 4 channels.
namespace penstock::image {

inline constexpr int kMagnitudes = 31;  // of rand_augment: 0 to 30

// `n` operations at this magnitude, as torchvision's RandAugment.
//
// Cubuk and others, "RandAugment: practical automated data augmentation with a reduced search
// space", NeurIPS 2020.
void rand_augment(Picture& picture, int n, int magnitude, const WarpOptions& options,
                  RandomStream& rng);

// One operation at any magnitude, as torchvision's TrivialAugmentWide.
//
// Mueller and Hutter, "TrivialAugment: tuning-free yet state-of-the-art data augmentation", ICCV
// 2021.
void trivial_augment_wide(Picture& picture, const WarpOptions& options, RandomStream& rng);

// What was learned on these sets of images.
enum class AugmentPolicy : uint8_t { kImageNet, kCifar10, kSvhn };
std::optional<AugmentPolicy> augment_policy_named(std::string_view name);
std::string_view name_of(AugmentPolicy policy);

// One of a policy's 25 pairs of operations, each with its probability, as torchvision's
// AutoAugment.
//
// Cubuk and others, "AutoAugment: learning augmentation strategies from data", CVPR 2019.
void auto_augment(Picture& picture, AugmentPolicy policy, const WarpOptions& options,
                  RandomStream& rng);

}  // namespace penstock::image
