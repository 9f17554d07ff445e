#include "penstock/pipeline/transformations/image_operations.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "module.h"
#include "penstock/base/error.h"
#include "sample_settings.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using Names = std::vector<std::string>;
// Images, masks, boxes, keypoints, and the value of new pixels of masks.
using Moved = std::tuple<Names, Names, Names, Names, uint8_t>;

image::Fields fields_of(Moved names) {
  image::Fields fields(std::move(std::get<0>(names)));
  fields.masks = std::move(std::get<1>(names));
  fields.boxes = std::move(std::get<2>(names));
  fields.keypoints = std::move(std::get<3>(names));
  fields.mask_fill = std::get<4>(names);
  return fields;
}

std::shared_ptr<Op> mutable_image_op(OpRef op) {
  return std::const_pointer_cast<Op>(std::move(op));
}

image::Filter filter_of(const std::string& name, const char* operation) {
  const auto filter = image::filter_named(name);
  if (filter) return *filter;
  throw Error(Code::kInvalidArgument, operation,
              "filter is '" + name + "'; there are nearest, box, bilinear, bicubic, lanczos");
}

image::WarpOptions warp_options(const std::string& fill, double value, const std::string& sampling,
                                const char* operation) {
  const auto beyond = image::beyond_named(fill);
  if (!beyond) {
    throw Error(Code::kInvalidArgument, operation,
                "fill is '" + fill + "'; there are nearest, constant, reflect, wrap, and numbers");
  }
  const auto known = image::sampling_named(sampling);
  if (!known) {
    throw Error(Code::kInvalidArgument, operation,
                "interpolation is '" + sampling + "'; there are nearest, bilinear");
  }
  return {*known, *beyond, value};
}

// A shift: (choices, most, relative).
image::KerasShift keras_shift_of(const nb::dict& ranges, const char* name) {
  const auto shift = setting<nb::tuple>(ranges, name);
  return {nb::cast<std::vector<double>>(shift[0]), nb::cast<double>(shift[1]),
          nb::cast<bool>(shift[2])};
}

image::KerasRanges keras_ranges_of(const nb::dict& ranges) {
  const auto pair = [&](const char* name) {
    const auto two = setting<std::array<double, 2>>(ranges, name);
    return image::Range{two[0], two[1]};
  };
  image::KerasRanges made;
  made.rotation = setting<double>(ranges, "rotation");
  made.height = keras_shift_of(ranges, "height_shift");
  made.width = keras_shift_of(ranges, "width_shift");
  made.shear = setting<double>(ranges, "shear");
  made.zoom = pair("zoom");
  made.horizontal_flip = setting<bool>(ranges, "horizontal_flip");
  made.vertical_flip = setting<bool>(ranges, "vertical_flip");
  made.channel_shift = setting<double>(ranges, "channel_shift");
  if (!ranges["brightness"].is_none()) made.brightness = pair("brightness");
  return made;
}

}  // namespace

void bind_image_operations(nb::module_& m) {
  m.def("image_decode", [](int channels, bool fast, bool exif, bool partial, Names fields) {
    return mutable_image_op(image::decode({channels, fast, exif, partial}, std::move(fields)));
  });
  m.def("image_encode", [](bool png, int quality, Names fields) {
    return mutable_image_op(image::encode(
        {png ? image::Encoding::kPng : image::Encoding::kJpeg, quality}, std::move(fields)));
  });
  m.def("image_resize",
        [](int height, int width, const std::string& filter, bool antialias, Moved fields) {
          return mutable_image_op(image::resize(height, width, filter_of(filter, "image.resize"),
                                                antialias, fields_of(std::move(fields))));
        });
  m.def("image_center_crop", [](int height, int width, Moved fields) {
    return mutable_image_op(image::center_crop(height, width, fields_of(std::move(fields))));
  });
  m.def("image_random_crop", [](int height, int width, Moved fields) {
    return mutable_image_op(image::random_crop(height, width, fields_of(std::move(fields))));
  });
  m.def("image_random_resized_crop",
        [](int height, int width, std::array<double, 2> scale, std::array<double, 2> ratio,
           const std::string& filter, bool antialias, Moved fields) {
          image::RandomResizedCropOptions options;
          options.scale = {scale[0], scale[1]};
          options.ratio = {ratio[0], ratio[1]};
          options.filter = filter_of(filter, "image.random_resized_crop");
          options.antialias = antialias;
          return mutable_image_op(
              image::random_resized_crop(height, width, options, fields_of(std::move(fields))));
        });
  m.def("image_random_flip", [](double horizontal, double vertical, Moved fields) {
    return mutable_image_op(image::random_flip(horizontal, vertical, fields_of(std::move(fields))));
  });
  m.def("image_pad", [](std::array<int, 4> sides, uint8_t value, Moved fields) {
    return mutable_image_op(
        image::pad({sides[0], sides[1], sides[2], sides[3]}, value, fields_of(std::move(fields))));
  });
  m.def("image_rot90", [](int quarters, Moved fields) {
    return mutable_image_op(image::rot90(quarters, fields_of(std::move(fields))));
  });
  m.def("image_random_affine",
        [](std::array<double, 2> degrees, std::array<double, 2> translate,
           const std::vector<double>& scale, std::array<double, 4> shear, const std::string& fill,
           double value, const std::string& sampling, Moved fields) {
          const char* const name = "image.random_affine";
          image::AffineRanges ranges;
          ranges.degrees = {degrees[0], degrees[1]};
          ranges.translate_x = translate[0];
          ranges.translate_y = translate[1];
          ranges.scale = {scale.at(0), scale.at(1)};
          if (scale.size() == 4) ranges.scale_y = image::Range{scale[2], scale[3]};
          ranges.shear_x = {shear[0], shear[1]};
          ranges.shear_y = {shear[2], shear[3]};
          return mutable_image_op(image::random_affine(
              ranges, warp_options(fill, value, sampling, name), fields_of(std::move(fields))));
        });
  m.def("image_keras", [](std::optional<nb::dict> ranges, const std::string& fill, double value,
                          const std::string& sampling, nb::dict standardization,
                          bool channels_first, std::string field) {
    image::KerasOptions options;
    if (ranges) options.ranges = keras_ranges_of(*ranges);
    options.warp = warp_options(fill, value, sampling, "keras.ImageDataGenerator");
    options.standardization = {setting<double>(standardization, "rescale"),
                               setting<bool>(standardization, "center"),
                               setting<bool>(standardization, "std"),
                               setting<std::vector<float>>(standardization, "feature_mean"),
                               setting<std::vector<float>>(standardization, "feature_std")};
    options.channels_first = channels_first;
    return mutable_image_op(image::keras_images(std::move(options), std::move(field)));
  });
  m.def("image_perspective", [](double distortion, double p, const std::string& fill, double value,
                                const std::string& sampling, Moved fields) {
    return mutable_image_op(
        image::perspective(distortion, p, warp_options(fill, value, sampling, "image.perspective"),
                           fields_of(std::move(fields))));
  });
  m.def("image_color_jitter",
        [](std::array<double, 2> brightness, std::array<double, 2> contrast,
           std::array<double, 2> saturation, std::array<double, 2> hue, Names fields) {
          const image::JitterRanges ranges{{brightness[0], brightness[1]},
                                           {contrast[0], contrast[1]},
                                           {saturation[0], saturation[1]},
                                           {hue[0], hue[1]}};
          return mutable_image_op(image::color_jitter(ranges, std::move(fields)));
        });
  m.def("image_invert", [](double p, Names fields) {
    return mutable_image_op(image::invert(p, std::move(fields)));
  });
  m.def("image_posterize", [](int bits, double p, Names fields) {
    return mutable_image_op(image::posterize(bits, p, std::move(fields)));
  });
  m.def("image_solarize", [](int threshold, double p, Names fields) {
    return mutable_image_op(image::solarize(threshold, p, std::move(fields)));
  });
  m.def("image_autocontrast", [](double p, Names fields) {
    return mutable_image_op(image::autocontrast(p, std::move(fields)));
  });
  m.def("image_equalize", [](double p, Names fields) {
    return mutable_image_op(image::equalize(p, std::move(fields)));
  });
  m.def("image_sharpness", [](double factor, double p, Names fields) {
    return mutable_image_op(image::sharpness(factor, p, std::move(fields)));
  });
  m.def("image_gamma", [](double gamma, double p, Names fields) {
    return mutable_image_op(image::gamma(gamma, p, std::move(fields)));
  });
  m.def("image_channel_shift", [](std::array<double, 2> shift, Names fields) {
    return mutable_image_op(image::channel_shift({shift[0], shift[1]}, std::move(fields)));
  });
  m.def("image_rand_augment", [](int n, int magnitude, const std::string& fill, double value,
                                 const std::string& sampling, Moved fields) {
    return mutable_image_op(
        image::rand_augment(n, magnitude, warp_options(fill, value, sampling, "image.rand_augment"),
                            fields_of(std::move(fields))));
  });
  m.def("image_auto_augment", [](const std::string& policy, const std::string& fill, double value,
                                 const std::string& sampling, Moved fields) {
    const char* const name = "image.auto_augment";
    const auto known = image::augment_policy_named(policy);
    if (!known) {
      throw Error(Code::kInvalidArgument, name,
                  "policy is '" + policy + "'; there are imagenet, cifar10, svhn");
    }
    return mutable_image_op(image::auto_augment(*known, warp_options(fill, value, sampling, name),
                                                fields_of(std::move(fields))));
  });
  m.def("image_trivial_augment_wide",
        [](const std::string& fill, double value, const std::string& sampling, Moved fields) {
          return mutable_image_op(image::trivial_augment_wide(
              warp_options(fill, value, sampling, "image.trivial_augment_wide"),
              fields_of(std::move(fields))));
        });
  m.def("image_parameters", [](std::shared_ptr<Op> operation, std::string field) {
    return mutable_image_op(image::parameters(std::move(operation), std::move(field)));
  });
  m.def("image_sanitize_boxes", [](std::string boxes, Names labels, float size, float area) {
    return mutable_image_op(
        image::sanitize_boxes({std::move(boxes), std::move(labels), size, area}));
  });
  m.def("image_gaussian_blur", [](int size, std::array<double, 2> sigma, Names fields) {
    return mutable_image_op(image::gaussian_blur(size, {sigma[0], sigma[1]}, std::move(fields)));
  });
  m.def("image_erase", [](double p, std::array<double, 2> scale, std::array<double, 2> ratio,
                          double value, Names fields) {
    return mutable_image_op(
        image::erase({p, {scale[0], scale[1]}, {ratio[0], ratio[1]}, value}, std::move(fields)));
  });
  m.def("image_mixup",
        [](double alpha, int64_t classes, std::string labels, bool chw, Names fields) {
          return mutable_image_op(
              image::mixup({alpha, classes, std::move(labels), chw}, std::move(fields)));
        });
  m.def("image_cutmix",
        [](double alpha, int64_t classes, std::string labels, bool chw, Names fields) {
          return mutable_image_op(
              image::cutmix({alpha, classes, std::move(labels), chw}, std::move(fields)));
        });
  m.def("image_grayscale", [](int channels, Names fields) {
    return mutable_image_op(image::grayscale(channels, std::move(fields)));
  });
  m.def("image_normalize", [](std::vector<float> mean, std::vector<float> std, Names fields) {
    return mutable_image_op(image::normalize(std::move(mean), std::move(std), std::move(fields)));
  });
  m.def("image_to_chw",
        [](Names fields) { return mutable_image_op(image::to_chw(std::move(fields))); });
}

}  // namespace penstock::python
