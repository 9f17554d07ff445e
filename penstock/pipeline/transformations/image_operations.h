#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/image/keras_transform.h"
#include "penstock/image/picture.h"
#include "penstock/image/random_affine.h"
#include "penstock/image/random_crop.h"
#include "penstock/image/warp.h"
#include "penstock/pipeline/stages/op.h"

// Operations on images for Dataset::map. Immutable: any thread. An image is uint8 with the axes
// {height, width, channels}, or {height, width}. `fields`: names of leaves; the others are passed
// on. Random numbers are keyed by seed, epoch, element and operation; all fields of an operation
// get the same.
//
// Operations that follow each other in a chain and have the same fields are one pass over each
// image: decoding knows the crop that follows, and only the result is written.
//
// Errors are kInvalidArgument, for arguments that cannot be; and when the chain is built, for
// elements that they cannot be applied to, as far as these are known then. An image that is too
// small for a crop fails with kInvalidArgument, one that cannot be decoded with kDataLoss.
namespace penstock::image {

using Fields = std::vector<std::string>;

// A JPEG or PNG, a byte string, as {height, width, options.channels}.
OpRef decode(const DecodeOptions& options = {}, Fields fields = {"image"});
// Pillow's resize, bit for bit. `antialias` false: the filter is not widened where an image
// shrinks.
OpRef resize(int height, int width, Filter filter = Filter::kBilinear, bool antialias = true,
             Fields fields = {"image"});
OpRef center_crop(int height, int width, Fields fields = {"image"});
OpRef random_crop(int height, int width, Fields fields = {"image"});
// See random_part.
struct RandomResizedCropOptions {
  Range scale{0.08, 1};
  Range ratio{3.0 / 4, 4.0 / 3};
  Filter filter = Filter::kBilinear;
  bool antialias = true;
};
OpRef random_resized_crop(int height, int width, const RandomResizedCropOptions& options = {},
                          Fields fields = {"image"});
// Mirrored with these probabilities.
OpRef random_flip(double horizontal = 0.5, double vertical = 0, Fields fields = {"image"});
struct Border {
  int left = 0, top = 0, right = 0, bottom = 0;
};
OpRef pad(const Border& border, uint8_t value = 0, Fields fields = {"image"});
// Counter-clockwise by so many quarters of a turn, as numpy.rot90.
OpRef rot90(int quarters = 1, Fields fields = {"image"});
// How pixels are found between pixels, and beyond the border.
struct WarpOptions {
  Sampling sampling = Sampling::kBilinear;
  Beyond beyond = Beyond::kNearest;
  double value = 0;  // of Beyond::kConstant
};
// See the function of this name in penstock/image/random_affine.h.
OpRef random_affine(const AffineRanges& ranges, const WarpOptions& options = {},
                    Fields fields = {"image"});
// Pillow's grey, in 1 or 3 equal channels.
OpRef grayscale(int channels = 1, Fields fields = {"image"});
// (x - mean) / std as float32; see penstock::normalize. Only to_chw may follow.
OpRef normalize(std::vector<float> mean, std::vector<float> std, Fields fields = {"image"});
// {channels, height, width}. Only normalize may follow.
OpRef to_chw(Fields fields = {"image"});
// What Keras' ImageDataGenerator makes of an image, uint8 or float32 with the axes {height, width,
// channels}, or {channels, height, width}: float32 of the same shape.
struct KerasOptions {
  std::optional<KerasRanges> ranges;  // none: not transformed
  Sampling sampling = Sampling::kBilinear;
  Beyond beyond = Beyond::kNearest;
  double value = 0;  // of Beyond::kConstant
  KerasStandardization standardization;
  bool channels_first = false;
};
OpRef keras_images(KerasOptions options, std::string field = "image");

}  // namespace penstock::image
