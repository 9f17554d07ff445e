#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/base/random.h"
#include "penstock/image/random_crop.h"
#include "penstock/image/warp.h"

// The transformations of Keras' ImageDataGenerator, with its meanings of all parameters.
namespace penstock::image {

// A shift along one axis: one of `choices`, with either sign; without these uniform in
// [-most, most]. `relative`: a part of the image's size; else pixels.
struct KerasShift {
  std::vector<double> choices;
  double most = 0;
  bool relative = false;
};

struct KerasRanges {
  double rotation = 0;  // degrees, to both sides
  KerasShift height, width;
  double shear = 0;                                     // degrees, to both sides
  Range zoom{1, 1};                                     // of either axis; below 1 magnifies
  bool horizontal_flip = false, vertical_flip = false;  // of every second image
  double channel_shift = 0;                             // to both sides
  std::optional<Range> brightness;
};

// Keras' dict of parameters. tx and ty are in pixels.
struct KerasTransform {
  double theta = 0, tx = 0, ty = 0, shear = 0, zx = 1, zy = 1;
  bool flip_horizontal = false, flip_vertical = false;
  std::optional<double> channel_shift, brightness;
};

// The same bits on every machine.
KerasTransform random_transform(const KerasRanges& ranges, int height, int width,
                                RandomStream& rng);

// Writes the transformed image to `to`, in the layout of `in`. Values differ from Keras' by
// rounding only; with brightness by 1 at most, because Keras makes 8-bit images of them.
void apply(const KerasTransform& transform, const ArrayView& in, Sampling sampling, Beyond beyond,
           double value, float* to);

// Keras' standardize(): in this order, and what is not given is left out.
struct KerasStandardization {
  double rescale = 1;
  bool center = false, std = false;              // by the image's own mean and deviation
  std::vector<float> feature_mean, feature_std;  // of each channel
};
// In place. REQUIRED: feature_mean and feature_std are empty, or have a value for each channel.
void standardize(const KerasStandardization& how, const ArrayLayout& layout, float* values);

}  // namespace penstock::image
