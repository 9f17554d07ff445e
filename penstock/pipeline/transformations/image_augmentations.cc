#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "penstock/image/adjust.h"
#include "penstock/image/auto_augment.h"
#include "penstock/image/random_box.h"
#include "penstock/pipeline/transformations/image_op.h"
#include "penstock/pipeline/transformations/image_operations.h"

// Steps that change pixels where they are.
namespace penstock::image {
namespace {

// A step on uint8 pixels of colours.
class ColourStep : public Step {
 public:
  using Change = std::function<void(Picture&, RandomStream&)>;
  ColourStep(const char* name, std::string arguments, double p, Change change)
      : Step(name), arguments_(std::move(arguments)), p_(p), change_(std::move(change)) {
    check_probability(p);
    if (p < 1) arguments_ += (arguments_.empty() ? "p=" : ", p=") + number(p);
  }
  std::string arguments() const override { return arguments_; }
  PictureSpec result(const PictureSpec& in) const override {
    check_bytes(in);
    check_channels(in.channels);
    return in;
  }
  void apply(Picture& picture, RandomStream& rng) const override {
    check_channels(picture.channels());
    if (rng.uniform() < p_) change_(picture, rng);
  }

 protected:
  void check_range(const char* name, const Range& range, double least, double most) const {
    if (range.least >= least && range.least <= range.greatest && range.greatest <= most) return;
    refuse(std::string(name) + " is " + listed({range.least, range.greatest}) +
           "; give two ascending numbers from " + number(least) + " to " + number(most));
  }
  void check_number(const char* name, double value, double least, double most) const {
    if (value >= least && value <= most) return;
    refuse(std::string(name) + " is " + number(value) + "; give " + number(least) + " to " +
           number(most));
  }

 private:
  void check_channels(int64_t channels) const {
    if (channels <= 4) return;
    refuse("the image has " + std::to_string(channels) + " channels; give 1 to 4");
  }

  std::string arguments_;
  double p_;
  Change change_;
};

// Factors above this are no use, and none overflows.
constexpr double kMaxFactor = 1000;

class JitterStep : public ColourStep {
 public:
  explicit JitterStep(const JitterRanges& ranges)
      : ColourStep("image.color_jitter", title_of(ranges), 1,
                   [ranges](Picture& picture, RandomStream& rng) {
                     color_jitter(picture.edited(), draw_jitter(ranges, rng));
                   }),
        ranges_(ranges) {
    check_range("brightness", ranges.brightness, 0, kMaxFactor);
    check_range("contrast", ranges.contrast, 0, kMaxFactor);
    check_range("saturation", ranges.saturation, 0, kMaxFactor);
    check_range("hue", ranges.hue, -0.5, 0.5);
  }
  size_t parameters() const override { return 8; }
  void draw(int, int, RandomStream& rng, double* to) const override {
    (void)rng.uniform();  // against the probability of a colour step
    const Jitter jitter = draw_jitter(ranges_, rng);
    for (double factor : jitter.factors) *to++ = factor;
    for (int each : jitter.order) *to++ = each;
  }

 private:
  static std::string title_of(const JitterRanges& ranges) {
    auto pair = [](const Range& range) { return listed({range.least, range.greatest}); };
    return "brightness=" + pair(ranges.brightness) + ", contrast=" + pair(ranges.contrast) +
           ", saturation=" + pair(ranges.saturation) + ", hue=" + pair(ranges.hue);
  }

  JitterRanges ranges_;
};

// A step with one number.
class NumberStep : public ColourStep {
 public:
  NumberStep(const char* name, const char* argument, double value, double least, double most,
             double p, std::function<void(Image&)> change)
      : ColourStep(name, number(value), p, edit(std::move(change))) {
    check_number(argument, value, least, most);
  }
  static Change edit(std::function<void(Image&)> change) {
    return
        [change = std::move(change)](Picture& picture, RandomStream&) { change(picture.edited()); };
  }
};

class RandAugmentStep : public ColourStep {
 public:
  RandAugmentStep(int n, int magnitude, const WarpOptions& options)
      : ColourStep("image.rand_augment", std::to_string(n) + ", " + std::to_string(magnitude), 1,
                   [=](Picture& picture, RandomStream& rng) {
                     rand_augment(picture, n, magnitude, options, rng);
                   }) {
    check_number("n", n, 1, 100);
    check_number("m", magnitude, 0, kMagnitudes - 1);
    if (!std::isfinite(options.value)) refuse("fill is " + number(options.value));
  }
  bool moves() const override { return true; }
};

// auto_augment and trivial_augment_wide.
class ChosenStep : public ColourStep {
 public:
  ChosenStep(const char* name, std::string arguments, const WarpOptions& options, Change change)
      : ColourStep(name, std::move(arguments), 1, std::move(change)) {
    if (!std::isfinite(options.value)) refuse("fill is " + number(options.value));
  }
  bool moves() const override { return true; }
};

class BlurStep : public ColourStep {
 public:
  BlurStep(int size, const Range& sigma)
      : ColourStep("image.gaussian_blur",
                   std::to_string(size) + ", sigma=" + listed({sigma.least, sigma.greatest}), 1,
                   [=](Picture& picture, RandomStream& rng) {
                     gaussian_blur(picture.edited(), size, between(sigma, rng));
                   }),
        sigma_(sigma) {
    if (size < 1 || size > 255 || size % 2 == 0) {
      refuse("kernel_size is " + std::to_string(size) + "; give an odd number from 1 to 255");
    }
    check_range("sigma", sigma, 0.01, 1000);
  }
  size_t parameters() const override { return 1; }
  void draw(int, int, RandomStream& rng, double* to) const override {
    (void)rng.uniform();  // against the probability of a colour step
    *to = between(sigma_, rng);
  }

 private:
  Range sigma_;
};

class ChannelShiftStep : public ColourStep {
 public:
  explicit ChannelShiftStep(const Range& shift)
      : ColourStep("image.channel_shift", listed({shift.least, shift.greatest}), 1,
                   [=](Picture& picture, RandomStream& rng) {
                     shift_channels(picture.edited(), between(shift, rng));
                   }),
        shift_(shift) {
    check_range("shift", shift, -255, 255);
  }
  size_t parameters() const override { return 1; }
  void draw(int, int, RandomStream& rng, double* to) const override {
    (void)rng.uniform();  // against the probability of a colour step
    *to = between(shift_, rng);
  }

 private:
  Range shift_;
};

class EraseStep : public Step {
 public:
  explicit EraseStep(const EraseOptions& options) : Step("image.erase"), options_(options) {
    check_probability(options.p);
    check("scale", options.scale, 1);
    check("ratio", options.ratio, 1000);
    if (!std::isfinite(options.value)) refuse("value is " + number(options.value));
  }
  std::string arguments() const override {
    return "p=" + number(options_.p) +
           ", scale=" + listed({options_.scale.least, options_.scale.greatest}) +
           ", ratio=" + listed({options_.ratio.least, options_.ratio.greatest}) + ", " +
           number(options_.value);
  }
  PictureSpec result(const PictureSpec& in) const override {
    check_pixels(in);
    return in;
  }
  void apply(Picture& picture, RandomStream& rng) const override {
    const auto box = box_in(picture.height(), picture.width(), rng);
    if (box) erase(picture.edited(), *box, options_.value);
  }
  size_t parameters() const override { return 4; }
  void draw(int height, int width, RandomStream& rng, double* to) const override {
    put_box(box_in(height, width, rng).value_or(CropBox{}), to);
  }

 private:
  std::optional<CropBox> box_in(int height, int width, RandomStream& rng) const {
    if (rng.uniform() >= options_.p) return std::nullopt;
    return box_to_erase(width, height, options_.scale, options_.ratio, rng);
  }
  void check(const char* name, const Range& range, double most) const {
    if (range.least > 0 && range.least <= range.greatest && range.greatest <= most) return;
    refuse(std::string(name) + " is " + listed({range.least, range.greatest}) +
           "; give two ascending numbers above 0, at most " + number(most));
  }
  EraseOptions options_;
};

}  // namespace

OpRef color_jitter(const JitterRanges& ranges, Fields fields) {
  return step_op<JitterStep>(std::move(fields), ranges);
}
OpRef invert(double p, Fields fields) {
  return step_op<ColourStep>(std::move(fields), "image.invert", "", p,
                             NumberStep::edit([](Image& image) { invert(image); }));
}
OpRef posterize(int bits, double p, Fields fields) {
  return step_op<NumberStep>(std::move(fields), "image.posterize", "bits", bits, 1, 8, p,
                             [bits](Image& image) { posterize(image, bits); });
}
OpRef solarize(int threshold, double p, Fields fields) {
  return step_op<NumberStep>(std::move(fields), "image.solarize", "threshold", threshold, 0, 256, p,
                             [threshold](Image& image) { solarize(image, threshold); });
}
OpRef autocontrast(double p, Fields fields) {
  return step_op<ColourStep>(std::move(fields), "image.autocontrast", "", p,
                             NumberStep::edit([](Image& image) { autocontrast(image); }));
}
OpRef equalize(double p, Fields fields) {
  return step_op<ColourStep>(std::move(fields), "image.equalize", "", p,
                             NumberStep::edit([](Image& image) { equalize(image); }));
}
OpRef sharpness(double factor, double p, Fields fields) {
  return step_op<NumberStep>(std::move(fields), "image.sharpness", "factor", factor, 0, kMaxFactor,
                             p, [factor](Image& image) { adjust_sharpness(image, factor); });
}
OpRef gamma(double gamma, double p, Fields fields) {
  return step_op<NumberStep>(std::move(fields), "image.gamma", "gamma", gamma, 0, kMaxFactor, p,
                             [gamma](Image& image) { adjust_gamma(image, gamma); });
}
OpRef channel_shift(const Range& shift, Fields fields) {
  return step_op<ChannelShiftStep>(std::move(fields), shift);
}
OpRef rand_augment(int n, int magnitude, const WarpOptions& options, Fields fields) {
  return step_op<RandAugmentStep>(std::move(fields), n, magnitude, options);
}
OpRef auto_augment(AugmentPolicy policy, const WarpOptions& options, Fields fields) {
  return step_op<ChosenStep>(
      std::move(fields), "image.auto_augment", std::string(name_of(policy)), options,
      [=](Picture& picture, RandomStream& rng) { auto_augment(picture, policy, options, rng); });
}
OpRef trivial_augment_wide(const WarpOptions& options, Fields fields) {
  return step_op<ChosenStep>(
      std::move(fields), "image.trivial_augment_wide", "", options,
      [=](Picture& picture, RandomStream& rng) { trivial_augment_wide(picture, options, rng); });
}
OpRef gaussian_blur(int size, const Range& sigma, Fields fields) {
  return step_op<BlurStep>(std::move(fields), size, sigma);
}
OpRef erase(const EraseOptions& options, Fields fields) {
  return step_op<EraseStep>(std::move(fields), options);
}

}  // namespace penstock::image
