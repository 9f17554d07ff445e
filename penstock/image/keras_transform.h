#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/base/random.h"
#include "penstock/image/random_box.h"
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

// The axes of an image, contiguous: {height, width, channels}, or {channels, height, width}.
struct KerasLayout {
  int width = 0, height = 0, channels = 0;
  bool channels_first = false;

  size_t pixels() const { return static_cast<size_t>(width) * static_cast<size_t>(height); }
  size_t values() const { return pixels() * static_cast<size_t>(channels); }
};

// Writes the transformed image of uint8 values, or of floats, to `to`. Values differ from Keras' by
// 1 at most. One thread.
class KerasTransformer {
 public:
  void apply(const KerasTransform& transform, const KerasLayout& layout, const uint8_t* in,
             bool floats, const WarpOptions& options, float* to);

 private:
  Warper warper_;
  std::vector<uint8_t> row_;
};

// Keras' standardize(): in this order, and what is not given is left out.
struct KerasStandardization {
  double rescale = 1;
  bool center = false, std = false;              // by the image's own mean and deviation
  std::vector<float> feature_mean, feature_std;  // of each channel
};
// In place. REQUIRED: feature_mean and feature_std are empty, or have a value for each channel.
void standardize(const KerasStandardization& how, const KerasLayout& layout, float* values);

}  // namespace penstock::image
