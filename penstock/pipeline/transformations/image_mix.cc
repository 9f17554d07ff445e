#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/image/random_box.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/image_op.h"
#include "penstock/pipeline/transformations/image_operations.h"

namespace penstock::image {
namespace {

// The label of image i, of integers.
int64_t label_at(const std::byte* labels, DType dtype, size_t i) {
  auto read = [&](auto value) {
    std::memcpy(&value, labels + i * sizeof(value), sizeof(value));
    return static_cast<int64_t>(value);
  };
  switch (dtype) {
    case DType::kUint8:
      return read(uint8_t{});
    case DType::kInt32:
      return read(int32_t{});
    default:
      return read(int64_t{});
  }
}

// Where the parts of an image batch are.
struct BatchAxes {
  int64_t images = 0, planes = 1, height = 0, width = 0, channels = 1;

  BatchAxes(std::span<const int64_t> shape, bool chw) : images(shape[0]) {
    const bool axis = shape.size() == 4;
    const size_t first = axis && chw ? 2 : 1;
    height = shape[first];
    width = shape[first + 1];
    if (axis) (chw ? planes : channels) = shape[chw ? 1 : 3];
  }
  size_t row() const { return static_cast<size_t>(width * channels); }
  size_t image() const { return static_cast<size_t>(planes * height) * row(); }
};

// mixup and cutmix. Immutable: any thread.
class MixOp : public Op {
 public:
  MixOp(bool boxes, const MixOptions& options, Fields fields)
      : boxes_(boxes), options_(options), fields_(std::move(fields.images)) {
    if (!(options_.alpha > 0 && options_.alpha <= 1000)) {
      refuse("alpha is " + number(options_.alpha) + "; give a number above 0, at most 1000");
    }
    if (options_.classes < 0) {
      refuse("num_classes is " + std::to_string(options_.classes) + "; give 1 or more");
    }
    if (fields_.empty()) refuse("fields is empty; name a leaf");
    for (const std::string& field : fields_) (void)utf8_name(field, name());
    (void)utf8_name(options_.labels, name());
  }

  std::string title() const override {
    return std::string(name()) + "(" + number(options_.alpha) +
           (options_.classes > 0 ? ", num_classes=" + std::to_string(options_.classes) : "") +
           (options_.labels == "label" ? "" : ", labels=" + options_.labels) +
           (options_.chw ? ", chw" : "") + ")";
  }

  SpecRef result(const ElementSpec& in) const override {
    std::vector<Leaf> leaves(in.leaves().begin(), in.leaves().end());
    for (const std::string& field : fields_) check_images(leaves[place_of(in, field)]);
    Leaf& labels = leaves[place_of(in, options_.labels)];
    if (labels.kind == LeafKind::kDense && labels.shape.size() == 1 && integers(labels)) {
      if (options_.classes == 0) {
        refuse("the labels '" + labels.name + "' are integers; give num_classes");
      }
      labels.shape.push_back(options_.classes);
      labels.dtype = DType::kFloat32;
    } else if (labels.kind != LeafKind::kDense || labels.shape.size() != 2 ||
               labels.dtype != DType::kFloat32) {
      refuse("the labels '" + labels.name + "' are " + std::string(name_of(labels.dtype)) + " " +
             to_string(labels.shape) +
             "; give integers (n), or float32 (n, classes), and map it behind batch()");
    }
    return std::make_shared<ElementSpec>(std::move(leaves), in.nest());
  }

  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override {
    std::vector<std::optional<size_t>> passes(in.leaves().size());
    for (size_t i = 0; i < passes.size(); ++i) passes[i] = i;
    for (const std::string& field : fields_) passes[place_of(in, field)].reset();
    passes[place_of(in, options_.labels)].reset();
    return passes;
  }

  bool costly() const override { return true; }
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override;

 private:
  class Run;
  const char* name() const { return boxes_ ? "image.cutmix" : "image.mixup"; }
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(Code::kInvalidArgument, name(), why);
  }
  size_t place_of(const ElementSpec& in, const std::string& field) const {
    const auto leaf = in.find(field);
    if (leaf) return *leaf;
    refuse("there is no field '" + field + "' in " + in.to_string() +
           "; name the images by fields, and the labels by labels");
  }
  static bool integers(const Leaf& leaf) {
    return leaf.dtype == DType::kUint8 || leaf.dtype == DType::kInt32 ||
           leaf.dtype == DType::kInt64;
  }
  void check_images(const Leaf& leaf) const {
    const size_t axes = leaf.shape.size();
    if (leaf.kind == LeafKind::kDense && (axes == 3 || axes == 4) &&
        (leaf.dtype == DType::kUint8 || leaf.dtype == DType::kFloat32)) {
      return;
    }
    refuse("'" + leaf.name + "' is " + std::string(name_of(leaf.dtype)) + " " +
           to_string(leaf.shape) +
           "; a batch of images is uint8 or float32 (n, height, width, channels): map it behind "
           "batch()");
  }

  bool boxes_;
  MixOptions options_;
  std::vector<std::string> fields_;
};

// One batch at a time. One thread.
class MixOp::Run : public OpRun {
 public:
  Run(const MixOp& op, std::vector<size_t> images, size_t labels, Context& context)
      : op_(op), images_(std::move(images)), labels_(labels), scratch_(context.scratch) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    for (uint32_t j = 0; j < keys.size(); ++j, ++row) {
      if ((in.alive() & out.alive() & uint64_t{1} << row) == 0) continue;
      try {
        RandomStream rng({keys.seed(), keys.epoch(), keys.position(j), keys.operation()});
        make(rng, in, out, row);
      } catch (const Error&) {
        out.fail(row, {"map(" + op_.title() + ")", 0, std::current_exception()});
      }
    }
  }

 private:
  void make(RandomStream& rng, const Chunk& in, Chunk& out, uint32_t row) {
    double share = random_proportion(op_.options_.alpha, rng);
    // A box is the same part of every field, so the first field says how large it is.
    const BatchAxes first(in.shape(images_[0], row), op_.options_.chw);
    for (size_t leaf : images_) {
      const BatchAxes axes(in.shape(leaf, row), op_.options_.chw);
      if (axes.images != first.images ||
          (op_.boxes_ && (axes.height != first.height || axes.width != first.width))) {
        op_.refuse("the fields have images of different numbers or sizes");
      }
    }
    CropBox box;
    if (op_.boxes_ && first.height > 0 && first.width > 0) {
      box = box_to_mix(static_cast<int>(first.width), static_cast<int>(first.height), share, rng);
      share = 1 - static_cast<double>(box.width) * box.height /
                      (static_cast<double>(first.width) * static_cast<double>(first.height));
    }
    for (size_t leaf : images_) {
      if (in.spec()->leaves()[leaf].dtype == DType::kUint8) {
        mix_images<uint8_t>(in, leaf, box, share, out, row);
      } else {
        mix_images<float>(in, leaf, box, share, out, row);
      }
    }
    mix_labels(first.images, share, in, out, row);
  }

  template <class T>
  void mix_images(const Chunk& in, size_t leaf, const CropBox& box, double share, Chunk& out,
                  uint32_t row) {
    const std::span<const int64_t> shape = in.shape(leaf, row);
    const BatchAxes axes(shape, op_.options_.chw);
    const size_t size = axes.image();
    const auto* from = reinterpret_cast<const T*>(in.at(leaf, row));
    auto* to = reinterpret_cast<T*>(
        place_row(out, leaf, row, values_of(shape) * sizeof(T), shape, scratch_));
    const T* before = from + (static_cast<size_t>(std::max<int64_t>(axes.images, 1)) - 1) * size;
    for (int64_t i = 0; i < axes.images; ++i, before = from, from += size, to += size) {
      if (!op_.boxes_) {
        mix(from, before, share, to, size);
        continue;
      }
      std::memcpy(to, from, size * sizeof(T));
      for (int64_t plane = 0; plane < axes.planes; ++plane) {
        for (int y = box.y; y < box.y + box.height; ++y) {
          const size_t at = static_cast<size_t>(plane * axes.height + y) * axes.row() +
                            static_cast<size_t>(box.x * axes.channels);
          std::memcpy(to + at, before + at,
                      static_cast<size_t>(box.width * axes.channels) * sizeof(T));
        }
      }
    }
  }

  void mix_labels(int64_t images, double share, const Chunk& in, Chunk& out, uint32_t row) {
    const Leaf& about = in.spec()->leaves()[labels_];
    const std::span<const int64_t> given = in.shape(labels_, row);
    if (given[0] != images) {
      op_.refuse(std::to_string(images) + " images, and " + std::to_string(given[0]) + " labels");
    }
    const bool whole = about.dtype != DType::kFloat32;
    const int64_t classes = whole ? op_.options_.classes : given[1];
    const std::array<int64_t, 2> shape{images, classes};
    const auto n = static_cast<size_t>(images), width = static_cast<size_t>(classes);
    auto* to = reinterpret_cast<float*>(
        place_row(out, labels_, row, n * width * sizeof(float), shape, scratch_));
    const std::byte* from = in.at(labels_, row);
    if (!whole) {
      const auto* rows = reinterpret_cast<const float*>(from);
      for (size_t i = 0; i < n; ++i) {
        mix(rows + i * width, rows + (i + n - 1) % n * width, share, to + i * width, width);
      }
      return;
    }
    std::fill_n(to, n * width, 0.0F);
    for (size_t i = 0; i < n; ++i) {
      const int64_t label = label_at(from, about.dtype, i);
      if (label < 0 || label >= classes) {
        op_.refuse("label " + std::to_string(label) + " of image " + std::to_string(i) +
                   " is not in 0 to " + std::to_string(classes - 1) + ", which num_classes allows");
      }
      to[i * width + static_cast<size_t>(label)] += static_cast<float>(share);
      to[(i + 1) % n * width + static_cast<size_t>(label)] += static_cast<float>(1 - share);
    }
  }

  const MixOp& op_;
  const std::vector<size_t> images_;
  const size_t labels_;
  Scratch& scratch_;
};

std::unique_ptr<OpRun> MixOp::bind(SpecRef in, Context& context) const {
  std::vector<size_t> images;
  for (const std::string& field : fields_) images.push_back(place_of(*in, field));
  return std::make_unique<Run>(*this, std::move(images), place_of(*in, options_.labels), context);
}

}  // namespace

OpRef mixup(const MixOptions& options, Fields fields) {
  return std::make_shared<MixOp>(false, options, std::move(fields));
}
OpRef cutmix(const MixOptions& options, Fields fields) {
  return std::make_shared<MixOp>(true, options, std::move(fields));
}

}  // namespace penstock::image
