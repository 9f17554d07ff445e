#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/base/random.h"
#include "penstock/image/adjust.h"
#include "penstock/image/auto_augment.h"
#include "penstock/image/encode.h"
#include "penstock/image/keras_transform.h"
#include "penstock/image/picture.h"
#include "penstock/image/random_box.h"
#include "penstock/image/random_map.h"
#include "penstock/image/warp.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/image_op.h"

// Operations on images for Dataset::map. Immutable: any thread. An image is uint8, or float32 where
// that is not refused, with the axes {height, width, channels}, or {height, width}. `fields`: names
// of leaves, which may be masks, boxes and keypoints, too; the others are passed on. Random numbers
// are keyed by seed, epoch, element and operation; all fields of an operation get the same.
//
// Operations that follow each other in a chain and have the same fields are one pass over each
// image: decoding knows the crop that follows, and only the result is written.
//
// Errors are kInvalidArgument, for arguments that cannot be; and when the chain is built, for
// elements that they cannot be applied to, as far as these are known then. An image that is too
// small for a crop fails with kInvalidArgument, one that cannot be decoded with kDataLoss.
namespace penstock::image {

// A BMP, GIF (its first frame), JPEG, PGM, PNG, PPM or WebP, a byte string, as {height, width,
// options.channels}.
OpRef decode(const DecodeOptions& options = {}, Fields fields = {"image"});
// An image as the byte string of a JPEG or PNG. Only decode may follow.
OpRef encode(const EncodeOptions& options = {}, Fields fields = {"image"});
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
// See the functions of these names in penstock/image/random_map.h.
OpRef random_affine(const AffineRanges& ranges, const WarpOptions& options = {},
                    Fields fields = {"image"});
OpRef perspective(double distortion = 0.5, double p = 0.5, const WarpOptions& options = {},
                  Fields fields = {"image"});

// The numbers that an operation draws for the image of an element, as a new leaf `field`, float32
// {n}, of elements that are dicts; the image stays as it is, for callers that apply the operation
// on a device. They are those of the operation itself at this place of the chain. Of random_flip: 1
// or 0, horizontally and vertically. Of crops, and erase: left, top, width, height; of erase 0
// where nothing is. Of random_affine and perspective: a to f, a to h of their Map. Of color_jitter:
// brightness, contrast, saturation, hue, and the numbers of these in the order of their
// application. Of gaussian_blur: sigma. Of channel_shift: the number that is added. Other
// operations are refused with kInvalidArgument.
OpRef parameters(OpRef operation, std::string field = "parameters");

// The same numbers, without rounding, for callers that have a batch on a device: of images of these
// sizes, whose random numbers are at `first` and the indices behind it. `to` holds
// parameter_count(operation) numbers of each image. Errors kInvalidArgument: an operation that
// parameters() refuses; an image that is too small for a crop.
struct Size {
  int height = 0, width = 0;
};
size_t parameter_count(const OpRef& operation);
void draw_parameters(const OpRef& operation, const RandomKey& first, std::span<const Size> sizes,
                     double* to);

// Removes the boxes, float32 {n, 4 or more}, that an operation left without an area, as
// torchvision's SanitizeBoundingBoxes: those narrower or lower than min_size or of a smaller area
// than min_area, and those with a number that is not-a-number. The rows of `labels`, arrays with a
// row for each box, are removed with them. Both become ragged. An element with another number of
// rows than boxes fails.
struct SanitizeOptions {
  std::string boxes = "boxes";
  std::vector<std::string> labels = {};
  float min_size = 1, min_area = 1;  // in pixels; 0: of any area
};
OpRef sanitize_boxes(SanitizeOptions options = {});

// Colours, of uint8 images with 1 to 4 channels; the last one of 2 or 4 is alpha, and stays. See
// penstock/image/adjust.h. Each is applied with the probability p.
OpRef color_jitter(const JitterRanges& ranges, Fields fields = {"image"});
OpRef invert(double p = 1, Fields fields = {"image"});
OpRef posterize(int bits, double p = 1, Fields fields = {"image"});            // bits: 1 to 8
OpRef solarize(int threshold = 128, double p = 1, Fields fields = {"image"});  // 0 to 256
OpRef autocontrast(double p = 1, Fields fields = {"image"});
OpRef equalize(double p = 1, Fields fields = {"image"});
OpRef sharpness(double factor, double p = 1, Fields fields = {"image"});  // 0 or more
OpRef gamma(double gamma, double p = 1, Fields fields = {"image"});       // 0 or more
// Adds one number, uniform in its range (-255 to 255), to all colours of an image; see
// shift_channels.
OpRef channel_shift(const Range& shift, Fields fields = {"image"});
// See penstock/image/auto_augment.h; borders are as `options` says.
OpRef rand_augment(int n = 2, int magnitude = 9, const WarpOptions& options = {},
                   Fields fields = {"image"});
OpRef auto_augment(AugmentPolicy policy = AugmentPolicy::kImageNet, const WarpOptions& options = {},
                   Fields fields = {"image"});
OpRef trivial_augment_wide(const WarpOptions& options = {}, Fields fields = {"image"});

// See penstock/image/adjust.h. `size` is odd; sigma is uniform in its range. uint8.
OpRef gaussian_blur(int size, const Range& sigma = {0.1, 2}, Fields fields = {"image"});
// A box of random area and aspect ratio (height by width) gets one value, as torchvision's
// RandomErasing chooses it; an image that no box fits into stays. Of any dtype.
struct EraseOptions {
  double p = 0.5;
  Range scale{0.02, 0.33};  // of the image's area
  Range ratio{0.3, 3.3};
  double value = 0;  // of every channel
};
OpRef erase(const EraseOptions& options = {}, Fields fields = {"image"});

// Mixes each image of a batch with the one before it, the first with the last, and their labels in
// the same proportion; one proportion for a batch, from the distribution Beta(alpha, alpha). Maps
// behind batch(). Images are uint8 or float32 {n, height, width, channels} or {n, height, width}.
// Labels are float32 {n, classes}, or integers {n}, which become float32 {n, classes}.
struct MixOptions {
  double alpha = 1;
  int64_t classes = 0;  // REQUIRED of integer labels
  std::string labels = "label";
  bool chw = false;  // the channels are first
};
OpRef mixup(const MixOptions& options, Fields fields = {"image"});
// The same, with a box of the other image instead of a mean.
OpRef cutmix(const MixOptions& options, Fields fields = {"image"});
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
  WarpOptions warp;
  KerasStandardization standardization;
  bool channels_first = false;
};
OpRef keras_images(KerasOptions options, std::string field = "image");

}  // namespace penstock::image
