#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/image_op.h"
#include "penstock/pipeline/transformations/image_operations.h"

namespace penstock::image {
namespace {

constexpr const char* kName = "keras.ImageDataGenerator";
constexpr double kMaxZoom = 1000, kMaxShift = 1e6;

std::string text_of(const Range& range) { return listed({range.least, range.greatest}); }

std::string text_of(const KerasShift& shift) {
  if (shift.choices.empty()) return number(shift.most);
  return listed(shift.choices) + (shift.relative ? " parts" : "");
}

class KerasOp : public Op {
 public:
  KerasOp(KerasOptions options, std::string field)
      : options_(std::move(options)), field_(utf8_name(std::move(field), kName)) {
    if (!options_.ranges) return;
    const KerasRanges& r = *options_.ranges;
    check(r.zoom.least > 0 && r.zoom.least <= r.zoom.greatest && r.zoom.greatest <= kMaxZoom,
          "zoom_range is " + text_of(r.zoom) + "; give two ascending numbers above 0");
    for (const KerasShift* shift : {&r.height, &r.width}) {
      bool fits = std::abs(shift->most) <= kMaxShift;
      for (double one : shift->choices) fits = fits && std::abs(one) <= kMaxShift;
      check(fits, "a shift is " + text_of(*shift) + "; give 1,000,000 pixels or fewer");
    }
    for (double one : {r.rotation, r.shear, r.channel_shift, options_.warp.value}) {
      check(std::isfinite(one), "a range is " + number(one));
    }
  }

  std::string title() const override {
    std::string text = std::string(kName) + "(";
    if (options_.ranges) {
      const KerasRanges& r = *options_.ranges;
      text +=
          "rotation=" + number(r.rotation) + ", height_shift=" + text_of(r.height) +
          ", width_shift=" + text_of(r.width) + ", shear=" + number(r.shear) +
          ", zoom=" + text_of(r.zoom) + ", channel_shift=" + number(r.channel_shift) +
          (r.brightness ? ", brightness=" + text_of(*r.brightness) : "") +
          (r.horizontal_flip ? ", horizontal_flip" : "") +
          (r.vertical_flip ? ", vertical_flip" : "") + ", fill=" +
          (options_.warp.beyond == Beyond::kConstant ? number(options_.warp.value)
                                                     : std::string(name_of(options_.warp.beyond))) +
          (options_.warp.sampling == Sampling::kBilinear ? "" : ", nearest");
    }
    const KerasStandardization& s = options_.standardization;
    return text + (options_.ranges ? "; " : "") + "rescale=" + number(s.rescale) +
           (s.center ? ", center" : "") + (s.std ? ", std" : "") + texts("mean", s.feature_mean) +
           texts("std", s.feature_std) + (options_.channels_first ? ", channels first)" : ")");
  }
  bool costly() const override { return true; }

  SpecRef result(const ElementSpec& in) const override {
    std::vector<Leaf> leaves(in.leaves().begin(), in.leaves().end());
    Leaf& leaf = leaves[place_in(in)];
    const bool known = leaf.dtype == DType::kUint8 || leaf.dtype == DType::kFloat32;
    check(leaf.kind == LeafKind::kDense && known && leaf.shape.size() == 3,
          "'" + leaf.name + "' is " + std::string(name_of(leaf.dtype)) + " " +
              to_string(leaf.shape) + "; images are uint8 or float32, of three axes");
    leaf.dtype = DType::kFloat32;
    return std::make_shared<ElementSpec>(std::move(leaves), in.nest());
  }
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override {
    const size_t own = place_in(in);
    std::vector<std::optional<size_t>> passes(in.leaves().size());
    for (size_t i = 0; i < passes.size(); ++i) {
      if (i != own) passes[i] = i;
    }
    return passes;
  }
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override {
    return std::make_unique<Run>(*this, place_in(*in),
                                 in->leaves()[place_in(*in)].dtype == DType::kFloat32, context);
  }

 private:
  class Run : public OpRun {
   public:
    Run(const KerasOp& op, size_t leaf, bool floats, Context& context)
        : op_(op), leaf_(leaf), floats_(floats), scratch_(context.scratch) {}
    void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
      for (uint32_t j = 0; j < keys.size(); ++j, ++row) {
        if (((in.alive() & out.alive()) >> row & 1) == 0) continue;
        try {
          make(keys, j, in, out, row);
        } catch (const Error&) {
          out.fail(row, {"map(" + std::string(kName) + ")", 0, std::current_exception()});
        }
      }
    }

   private:
    void make(const Keys& keys, uint32_t j, const Chunk& in, Chunk& out, uint32_t row) {
      const std::span<const int64_t> shape = in.shape(leaf_, row);
      const KerasLayout layout = layout_of(shape);
      auto* to = reinterpret_cast<float*>(
          place_row(out, leaf_, row, layout.values() * sizeof(float), shape, scratch_));
      const KerasOptions& options = op_.options_;
      KerasTransform transform;
      if (options.ranges) {
        RandomStream rng({keys.seed(), keys.epoch(), keys.position(j), keys.operation()});
        transform = random_transform(*options.ranges, layout.height, layout.width, rng);
      }
      transformer_.apply(transform, layout, reinterpret_cast<const uint8_t*>(in.at(leaf_, row)),
                         floats_, options.warp, to);
      standardize(options.standardization, layout, to);
    }

    KerasLayout layout_of(std::span<const int64_t> shape) const {
      const KerasOptions& options = op_.options_;
      const bool first = options.channels_first;
      const int64_t channels = shape[first ? 0 : 2];
      const int64_t height = shape[first ? 1 : 0], width = shape[first ? 2 : 1];
      check(values_of(shape) > 0 && values_of(shape) <= kMaxPixels,
            "an image of shape " + to_string(Shape(shape.begin(), shape.end())));
      for (const auto* list :
           {&options.standardization.feature_mean, &options.standardization.feature_std}) {
        check(list->empty() || static_cast<int64_t>(list->size()) == channels,
              "an image has " + std::to_string(channels) + " channels; fit() had " +
                  std::to_string(list->size()));
      }
      return {static_cast<int>(width), static_cast<int>(height), static_cast<int>(channels), first};
    }

    const KerasOp& op_;
    const size_t leaf_;
    const bool floats_;
    Scratch& scratch_;
    KerasTransformer transformer_;
  };

  static void check(bool fits, const std::string& otherwise) {
    if (!fits) throw Error(Code::kInvalidArgument, kName, otherwise);
  }
  static std::string texts(const char* name, const std::vector<float>& values) {
    if (values.empty()) return {};
    return std::string(", ") + name + "=" + listed({values.begin(), values.end()});
  }
  size_t place_in(const ElementSpec& in) const {
    const auto leaf = in.find(field_);
    check(leaf.has_value(), "there is no field '" + field_ + "' in " + in.to_string());
    return *leaf;
  }

  const KerasOptions options_;
  const std::string field_;
};

}  // namespace

OpRef keras_images(KerasOptions options, std::string field) {
  return std::make_shared<KerasOp>(std::move(options), std::move(field));
}

}  // namespace penstock::image
