#include <algorithm>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/image_op.h"
#include "penstock/pipeline/transformations/image_operations.h"

namespace penstock::image {
namespace {

constexpr const char* kParameters = "image.parameters";

Error refused(const std::string& why) { return {Code::kInvalidArgument, kParameters, why}; }

// Error kInvalidArgument: not an operation on images that draws some numbers for each.
const ImageOp& drawing(const OpRef& operation) {
  const auto* const images = dynamic_cast<const ImageOp*>(operation.get());
  if (images != nullptr && images->step()->parameters() > 0) return *images;
  throw refused("the random choices of " + operation->title() +
                " are not a few numbers; there are random_crop, random_resized_crop, random_flip, "
                "random_affine, perspective, color_jitter, channel_shift, gaussian_blur and erase");
}

// Adds a leaf; all others are passed on.
class ParametersOp : public Op {
 public:
  // Error kInvalidArgument: an operation that does not draw some numbers.
  ParametersOp(const OpRef& operation, std::string field)
      : field_(utf8_name(std::move(field), kParameters)), title_(operation->title()) {
    const ImageOp& images = drawing(operation);
    if (!images.fields().alone() || images.fields().images.size() != 1) {
      throw refused("give an operation of one image, without masks, boxes and keypoints");
    }
    step_ = images.step();
    image_ = images.fields().images.front();
  }

  std::string title() const override {
    return std::string(kParameters) + "(" + title_ + ", " + field_ + ")";
  }

  SpecRef result(const ElementSpec& in) const override {
    (void)step_->result(PictureSpec::of(in.leaves()[image_of(in)], kParameters));
    std::vector<Leaf> leaves(in.leaves().begin(), in.leaves().end());
    leaves.push_back({field_, LeafKind::kDense, DType::kFloat32, shape()});
    std::string nest = in.nest();
    if (!nest.empty()) {  // nest.h has the grammar
      if (nest.front() != '{') {
        throw refused("it adds a field to a dict; the elements are " + in.to_string());
      }
      nest.insert(nest.size() - 1, std::to_string(field_.size()) + ":" + field_ + ".");
    }
    return std::make_shared<ElementSpec>(std::move(leaves), std::move(nest));
  }

  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override {
    std::vector<std::optional<size_t>> passes(in.leaves().size() + 1);
    for (size_t i = 0; i < in.leaves().size(); ++i) passes[i] = i;
    return passes;
  }

  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override {
    return std::make_unique<Run>(*this, image_of(*in), in->leaves().size(), context.scratch);
  }

 private:
  class Run : public OpRun {
   public:
    Run(const ParametersOp& op, size_t image, size_t to, Scratch& scratch)
        : step_(*op.step_),
          shape_(op.shape()),
          image_(image),
          to_(to),
          scratch_(scratch),
          drawn_(step_.parameters()) {}

    void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
      const uint32_t first = row;
      each_alive(in.alive() & out.alive(), first, first + keys.size(), [&](uint32_t i) {
        try {
          const std::span<const int64_t> size = in.shape(image_, i);
          RandomStream rng({keys.seed(), keys.epoch(), keys.position(i - first), keys.operation()});
          step_.draw(static_cast<int>(size[0]), static_cast<int>(size[1]), rng, drawn_.data());
          std::byte* to = place_row(out, to_, i, drawn_.size() * sizeof(float), shape_, scratch_);
          std::transform(drawn_.begin(), drawn_.end(), reinterpret_cast<float*>(to),
                         [](double each) { return static_cast<float>(each); });
        } catch (const Error&) {
          out.fail(i, {"", 0, std::current_exception()});
        }
      });
    }

   private:
    const Step& step_;
    const Shape shape_;
    const size_t image_, to_;
    Scratch& scratch_;
    std::vector<double> drawn_;  // of the current image
  };

  Shape shape() const { return {static_cast<int64_t>(step_->parameters())}; }
  size_t image_of(const ElementSpec& in) const {
    const auto leaf = in.find(image_);
    if (leaf) return *leaf;
    throw refused("there is no field '" + image_ + "' in " + in.to_string());
  }

  std::string field_, title_, image_;
  StepRef step_;
};

}  // namespace

OpRef parameters(OpRef operation, std::string field) {
  return std::make_shared<ParametersOp>(operation, std::move(field));
}

size_t parameter_count(const OpRef& operation) { return drawing(operation).step()->parameters(); }

void draw_parameters(const OpRef& operation, const RandomKey& first, std::span<const Size> sizes,
                     double* to) {
  const Step& step = *drawing(operation).step();
  RandomKey key = first;
  for (const Size& size : sizes) {
    RandomStream rng(key);
    step.draw(size.height, size.width, rng, to);
    to += step.parameters();
    ++key.index;
  }
}

}  // namespace penstock::image
