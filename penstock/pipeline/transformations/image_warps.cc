#include <cmath>
#include <string>
#include <utility>

#include "penstock/pipeline/transformations/image_op.h"
#include "penstock/pipeline/transformations/image_operations.h"

namespace penstock::image {
namespace {

// A step that moves pixels, and keeps the image's size.
class WarpStep : public Step {
 public:
  WarpStep(const char* name, const WarpOptions& options) : Step(name), options_(options) {
    if (!std::isfinite(options.value)) refuse("fill is " + number(options.value));
  }
  PictureSpec result(const PictureSpec& in) const override {
    check_pixels(in);
    return in;
  }
  bool moves() const override { return true; }

 protected:
  std::string fill() const {
    const bool one_value = options_.beyond == Beyond::kConstant;
    return "fill=" + (one_value ? number(options_.value) : std::string(name_of(options_.beyond))) +
           (options_.sampling == Sampling::kBilinear ? "" : ", nearest");
  }
  const WarpOptions& options() const { return options_; }
  // Error kInvalidArgument: not two ascending numbers between these.
  void check_range(const char* name, const Range& range, double least, double most) const {
    if (range.least >= least && range.least <= range.greatest && range.greatest <= most) return;
    refuse(std::string(name) + " is " + listed({range.least, range.greatest}) +
           "; give two ascending numbers from " + number(least) + " to " + number(most));
  }

 private:
  WarpOptions options_;
};

class RandomAffineStep : public WarpStep {
 public:
  RandomAffineStep(const AffineRanges& ranges, const WarpOptions& options)
      : WarpStep("image.random_affine", options), ranges_(ranges) {
    check_range("degrees", ranges.degrees, -360, 360);
    for (double one : {ranges.translate_x, ranges.translate_y}) {
      if (one >= 0 && one <= 1) continue;
      refuse("translate is " + listed({ranges.translate_x, ranges.translate_y}) +
             "; give two numbers from 0 to 1");
    }
    check_range("scale", ranges.scale, 0.01, 100);
    if (ranges.scale_y) check_range("scale", *ranges.scale_y, 0.01, 100);
    check_range("shear", ranges.shear_x, -80, 80);
    check_range("shear", ranges.shear_y, -80, 80);
  }
  std::string arguments() const override {
    auto pair = [](const Range& range) { return listed({range.least, range.greatest}); };
    std::vector<double> scale{ranges_.scale.least, ranges_.scale.greatest};
    if (ranges_.scale_y) {
      scale.insert(scale.end(), {ranges_.scale_y->least, ranges_.scale_y->greatest});
    }
    return "degrees=" + pair(ranges_.degrees) +
           ", translate=" + listed({ranges_.translate_x, ranges_.translate_y}) +
           ", scale=" + listed(scale) + ", shear=" +
           listed({ranges_.shear_x.least, ranges_.shear_x.greatest, ranges_.shear_y.least,
                   ranges_.shear_y.greatest}) +
           ", " + fill();
  }
  void apply(Picture& picture, RandomStream& rng) const override {
    picture.warp(random_affine(picture.width(), picture.height(), ranges_, rng), options());
  }
  size_t parameters() const override { return 6; }
  void draw(int height, int width, RandomStream& rng, double* to) const override {
    const Map map = random_affine(width, height, ranges_, rng);
    for (double each : {map.a, map.b, map.c, map.d, map.e, map.f}) *to++ = each;
  }

 private:
  AffineRanges ranges_;
};

class PerspectiveStep : public WarpStep {
 public:
  PerspectiveStep(double distortion, double p, const WarpOptions& options)
      : WarpStep("image.perspective", options), distortion_(distortion), p_(p) {
    if (!(distortion >= 0 && distortion <= 1)) {
      refuse("distortion is " + number(distortion) + "; give 0 to 1");
    }
    check_probability(p);
  }
  std::string arguments() const override {
    return number(distortion_) + ", p=" + number(p_) + ", " + fill();
  }
  void apply(Picture& picture, RandomStream& rng) const override {
    if (rng.uniform() >= p_) return;
    picture.warp(random_perspective(picture.width(), picture.height(), distortion_, rng),
                 options());
  }
  size_t parameters() const override { return 8; }
  void draw(int height, int width, RandomStream& rng, double* to) const override {
    Map map;
    if (rng.uniform() < p_) map = random_perspective(width, height, distortion_, rng);
    for (double each : {map.a, map.b, map.c, map.d, map.e, map.f, map.g, map.h}) *to++ = each;
  }

 private:
  double distortion_, p_;
};

}  // namespace

OpRef perspective(double distortion, double p, const WarpOptions& options, Fields fields) {
  return step_op<PerspectiveStep>(std::move(fields), distortion, p, options);
}
OpRef random_affine(const AffineRanges& ranges, const WarpOptions& options, Fields fields) {
  return step_op<RandomAffineStep>(std::move(fields), ranges, options);
}

}  // namespace penstock::image
