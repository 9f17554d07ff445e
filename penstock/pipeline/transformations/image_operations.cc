#include "penstock/pipeline/transformations/image_operations.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/transformations/image_op.h"

namespace penstock::image {
namespace {

constexpr int kMaxSide = 65535;

// A step whose result has a height and a width of its own.
class SizedStep : public Step {
 public:
  SizedStep(const char* name, int height, int width) : Step(name), height_(height), width_(width) {
    if (height >= 1 && height <= kMaxSide && width >= 1 && width <= kMaxSide) return;
    refuse("the size is " + size() + "; give 1 to " + std::to_string(kMaxSide));
  }
  std::string arguments() const override {
    return std::to_string(height_) + ", " + std::to_string(width_);
  }
  PictureSpec result(const PictureSpec& in) const override {
    check_pixels(in);
    PictureSpec out = in;
    out.height = height_;
    out.width = width_;
    return out;
  }
  bool moves() const override { return true; }

 protected:
  int height() const { return height_; }
  int width() const { return width_; }
  std::string size() const { return std::to_string(height_) + " x " + std::to_string(width_); }
  void check_fits(int64_t in_height, int64_t in_width) const {
    if ((in_height < 0 || in_height >= height_) && (in_width < 0 || in_width >= width_)) return;
    refuse("the image is " + std::to_string(in_height) + " x " + std::to_string(in_width) +
           ", smaller than the crop of " + size() + "; map image.resize() or image.pad() before");
  }

 private:
  int height_, width_;
};

class ResizeStep : public SizedStep {
 public:
  ResizeStep(int height, int width, Filter filter, bool antialias)
      : SizedStep("image.resize", height, width), filter_(filter), antialias_(antialias) {}
  std::string arguments() const override {
    return SizedStep::arguments() + ", " + std::string(name_of(filter_)) +
           (antialias_ ? "" : ", antialias=False");
  }
  PictureSpec result(const PictureSpec& in) const override {
    check_bytes(in);
    return SizedStep::result(in);
  }
  void apply(Picture& picture, RandomStream&) const override {
    picture.resize(height(), width(), filter_, antialias_);
  }

 private:
  Filter filter_;
  bool antialias_;
};

class CropStep : public SizedStep {
 public:
  CropStep(const char* name, int height, int width, bool random)
      : SizedStep(name, height, width), random_(random) {}
  PictureSpec result(const PictureSpec& in) const override {
    PictureSpec out = SizedStep::result(in);
    check_fits(in.height, in.width);
    return out;
  }
  void apply(Picture& picture, RandomStream& rng) const override {
    const CropBox box = box_in(picture.height(), picture.width(), rng);
    picture.crop(box.x, box.y, box.width, box.height);
  }
  size_t parameters() const override { return random_ ? 4 : 0; }
  void draw(int in_height, int in_width, RandomStream& rng, double* to) const override {
    put_box(box_in(in_height, in_width, rng), to);
  }

 private:
  CropBox box_in(int in_height, int in_width, RandomStream& rng) const {
    check_fits(in_height, in_width);
    if (random_) return random_box(in_width, in_height, width(), height(), rng);
    // In the middle as torchvision has it: halves are rounded to even.
    return {static_cast<int>(std::nearbyint((in_width - width()) / 2.0)),
            static_cast<int>(std::nearbyint((in_height - height()) / 2.0)), width(), height()};
  }

  bool random_;
};

class RandomResizedCropStep : public SizedStep {
 public:
  RandomResizedCropStep(int height, int width, const RandomResizedCropOptions& options)
      : SizedStep("image.random_resized_crop", height, width), options_(options) {
    check("scale", options.scale, 1);
    check("ratio", options.ratio, kMaxSide);
  }
  std::string arguments() const override {
    return SizedStep::arguments() + ", scale=(" + number(options_.scale.least) + ", " +
           number(options_.scale.greatest) + "), ratio=(" + number(options_.ratio.least) + ", " +
           number(options_.ratio.greatest) + "), " + std::string(name_of(options_.filter)) +
           (options_.antialias ? "" : ", antialias=False");
  }
  PictureSpec result(const PictureSpec& in) const override {
    check_bytes(in);
    return SizedStep::result(in);
  }
  void apply(Picture& picture, RandomStream& rng) const override {
    const CropBox box = box_in(picture.height(), picture.width(), rng);
    picture.crop(box.x, box.y, box.width, box.height);
    picture.resize(height(), width(), options_.filter, options_.antialias);
  }
  size_t parameters() const override { return 4; }
  void draw(int in_height, int in_width, RandomStream& rng, double* to) const override {
    put_box(box_in(in_height, in_width, rng), to);
  }

 private:
  CropBox box_in(int in_height, int in_width, RandomStream& rng) const {
    return random_part(in_width, in_height, options_.scale, options_.ratio, rng);
  }
  void check(const char* name, const Range& range, double most) const {
    if (range.least > 0 && range.least <= range.greatest && range.greatest <= most) return;
    refuse(std::string(name) + " is (" + number(range.least) + ", " + number(range.greatest) +
           "); give two ascending numbers above 0" + (most == 1 ? ", at most 1" : ""));
  }
  RandomResizedCropOptions options_;
};

class FlipStep : public Step {
 public:
  FlipStep(double horizontal, double vertical)
      : Step("image.random_flip"), horizontal_(horizontal), vertical_(vertical) {
    for (double one : {horizontal, vertical}) {
      if (!(one >= 0 && one <= 1)) refuse("a probability is " + number(one) + "; give 0 to 1");
    }
  }
  std::string arguments() const override {
    return number(horizontal_) + (vertical_ == 0 ? "" : ", vertical=" + number(vertical_));
  }
  PictureSpec result(const PictureSpec& in) const override {
    check_pixels(in);
    return in;
  }
  void apply(Picture& picture, RandomStream& rng) const override {
    double flips[2];
    draw(picture.height(), picture.width(), rng, flips);
    picture.flip(flips[0] == 1, flips[1] == 1);
  }
  bool moves() const override { return true; }
  size_t parameters() const override { return 2; }
  void draw(int, int, RandomStream& rng, double* to) const override {
    to[0] = rng.uniform() < horizontal_ ? 1 : 0;
    to[1] = rng.uniform() < vertical_ ? 1 : 0;
  }

 private:
  double horizontal_, vertical_;
};

class PadStep : public Step {
 public:
  PadStep(const Border& border, uint8_t value) : Step("image.pad"), border_(border), value_(value) {
    for (int side : {border.left, border.top, border.right, border.bottom}) {
      if (side < 0 || side > kMaxSide) {
        refuse("a side is " + std::to_string(side) + "; give 0 to " + std::to_string(kMaxSide));
      }
    }
  }
  std::string arguments() const override {
    return "(" + std::to_string(border_.left) + ", " + std::to_string(border_.top) + ", " +
           std::to_string(border_.right) + ", " + std::to_string(border_.bottom) + "), " +
           std::to_string(value_);
  }
  PictureSpec result(const PictureSpec& in) const override {
    check_pixels(in);
    PictureSpec out = in;
    if (in.height >= 0) out.height += border_.top + border_.bottom;
    if (in.width >= 0) out.width += border_.left + border_.right;
    return out;
  }
  void apply(Picture& picture, RandomStream&) const override {
    picture.pad(border_.left, border_.top, border_.right, border_.bottom, value_);
  }
  bool moves() const override { return true; }

 private:
  Border border_;
  uint8_t value_;
};

class TurnStep : public Step {
 public:
  explicit TurnStep(int quarters) : Step("image.rot90"), quarters_((quarters % 4 + 4) % 4) {}
  std::string arguments() const override { return std::to_string(quarters_); }
  PictureSpec result(const PictureSpec& in) const override {
    check_pixels(in);
    PictureSpec out = in;
    if (quarters_ % 2 == 1) std::swap(out.height, out.width);
    return out;
  }
  void apply(Picture& picture, RandomStream&) const override { picture.turn(quarters_); }
  bool moves() const override { return true; }

 private:
  int quarters_;
};

class GreyStep : public Step {
 public:
  explicit GreyStep(int channels) : Step("image.grayscale"), channels_(channels) {
    if (channels != 1 && channels != 3) {
      refuse("channels is " + std::to_string(channels) + "; give 1 or 3");
    }
  }
  std::string arguments() const override { return std::to_string(channels_); }
  PictureSpec result(const PictureSpec& in) const override {
    check_bytes(in);
    PictureSpec out = in;
    out.channels = channels_;
    out.flat = false;
    return out;
  }
  void apply(Picture& picture, RandomStream&) const override { picture.grey(channels_); }

 private:
  int channels_;
};

class NormalizeStep : public Step {
 public:
  NormalizeStep(std::vector<float> mean, std::vector<float> std) : Step("image.normalize") {
    if (mean.empty() || mean.size() != std.size()) {
      refuse(std::to_string(mean.size()) + " numbers of mean and " + std::to_string(std.size()) +
             " of std; give one of each, or one a channel");
    }
    for (float one : std) {
      if (one == 0 || !std::isfinite(one)) refuse("std is " + number(one));
    }
    arguments_ = listed({mean.begin(), mean.end()}) + ", " + listed({std.begin(), std.end()});
    normalization_ = std::make_shared<const Normalization>(std::move(mean), std::move(std));
  }
  std::string arguments() const override { return arguments_; }
  PictureSpec result(const PictureSpec& in) const override {
    PictureSpec out = in;
    out.chw = false;
    check_pixels(out);
    check_channels(in.channels);
    out.chw = in.chw;
    out.form = PictureSpec::Form::kFloats;
    return out;
  }
  void apply(Picture& picture, RandomStream&) const override {
    check_channels(picture.channels());
    picture.normalize(normalization_);
  }

 private:
  void check_channels(int64_t channels) const {
    const auto given = static_cast<int64_t>(normalization_->channels());
    if (given == 1 || channels < 0 || channels == given) return;
    refuse("the image has " + std::to_string(channels) + " channels, and mean " +
           std::to_string(given));
  }
  std::string arguments_;
  NormalizationRef normalization_;
};

class ChwStep : public Step {
 public:
  ChwStep() : Step("image.to_chw") {}
  PictureSpec result(const PictureSpec& in) const override {
    if (in.form == PictureSpec::Form::kEncoded) check_pixels(in);
    if (in.chw) refuse("the channels are first already");
    if (in.flat) refuse("the images have no axis of channels");
    PictureSpec out = in;
    out.chw = true;
    return out;
  }
  void apply(Picture& picture, RandomStream&) const override { picture.to_chw(); }
};

}  // namespace

OpRef decode(const DecodeOptions& options, Fields fields) {
  return step_op<DecodeStep>(std::move(fields), options);
}
OpRef encode(const EncodeOptions& options, Fields fields) {
  return step_op<EncodeStep>(std::move(fields), options);
}
OpRef resize(int height, int width, Filter filter, bool antialias, Fields fields) {
  return step_op<ResizeStep>(std::move(fields), height, width, filter, antialias);
}
OpRef center_crop(int height, int width, Fields fields) {
  return step_op<CropStep>(std::move(fields), "image.center_crop", height, width, false);
}
OpRef random_crop(int height, int width, Fields fields) {
  return step_op<CropStep>(std::move(fields), "image.random_crop", height, width, true);
}
OpRef random_resized_crop(int height, int width, const RandomResizedCropOptions& options,
                          Fields fields) {
  return step_op<RandomResizedCropStep>(std::move(fields), height, width, options);
}
OpRef random_flip(double horizontal, double vertical, Fields fields) {
  return step_op<FlipStep>(std::move(fields), horizontal, vertical);
}
OpRef pad(const Border& border, uint8_t value, Fields fields) {
  return step_op<PadStep>(std::move(fields), border, value);
}
OpRef rot90(int quarters, Fields fields) { return step_op<TurnStep>(std::move(fields), quarters); }
OpRef grayscale(int channels, Fields fields) {
  return step_op<GreyStep>(std::move(fields), channels);
}
OpRef normalize(std::vector<float> mean, std::vector<float> std, Fields fields) {
  return step_op<NormalizeStep>(std::move(fields), std::move(mean), std::move(std));
}
OpRef to_chw(Fields fields) { return step_op<ChwStep>(std::move(fields)); }

}  // namespace penstock::image
