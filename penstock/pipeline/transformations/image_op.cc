#include "penstock/pipeline/transformations/image_op.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <span>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock::image {

PictureSpec PictureSpec::of(const Leaf& leaf, const char* operation) {
  PictureSpec spec;
  const size_t axes = leaf.shape.size();
  const bool bytes = leaf.dtype == DType::kUint8;
  spec.floats = leaf.dtype == DType::kFloat32;
  if (leaf.kind == LeafKind::kBytes || (leaf.kind == LeafKind::kDense && bytes && axes == 1)) {
    spec.form = Form::kEncoded;
    return spec;
  }
  if (leaf.kind != LeafKind::kDense || !(bytes || spec.floats) || axes < 2 || axes > 3) {
    throw Error(Code::kInvalidArgument, operation,
                "'" + leaf.name + "' is " + std::string(name_of(leaf.dtype)) + " " +
                    to_string(leaf.shape) +
                    "; images are encoded bytes, or uint8 or float32 (height, width, channels)");
  }
  spec.flat = axes == 2;
  spec.height = leaf.shape[0];
  spec.width = leaf.shape[1];
  spec.channels = spec.flat ? 1 : leaf.shape[2];
  return spec;
}

Leaf PictureSpec::leaf(std::string name) const {
  if (form == Form::kEncoded) return {std::move(name), LeafKind::kBytes, DType::kUint8, {-1}};
  const DType dtype = form == Form::kFloats || floats ? DType::kFloat32 : DType::kUint8;
  Shape shape{height, width};
  if (!flat) shape.insert(chw ? shape.begin() : shape.end(), channels);
  return {std::move(name), LeafKind::kDense, dtype, std::move(shape)};
}

void Step::refuse(const std::string& why) const { throw Error(Code::kInvalidArgument, name_, why); }

void Step::check_pixels(const PictureSpec& in) const {
  if (in.form == PictureSpec::Form::kEncoded) {
    refuse("the images are encoded bytes; map image.decode() before");
  }
  if (in.form == PictureSpec::Form::kFloats) refuse("map it before image.normalize()");
  if (in.chw) refuse("map it before image.to_chw()");
}

void Step::check_bytes(const PictureSpec& in) const {
  check_pixels(in);
  if (in.floats) refuse("the images are float32; it is for uint8");
}

void Step::check_probability(double p) const {
  if (!(p >= 0 && p <= 1)) refuse("p is " + number(p) + "; give 0 to 1");
}

std::string number(double value) {
  char digits[32];
  std::snprintf(digits, sizeof(digits), "%.9g", value);
  return digits;
}

std::string listed(const std::vector<double>& numbers) {
  std::string text = numbers.size() > 1 ? "(" : "";
  for (size_t i = 0; i < numbers.size(); ++i) text += (i > 0 ? ", " : "") + number(numbers[i]);
  return text + (numbers.size() > 1 ? ")" : "");
}

DecodeStep::DecodeStep(const DecodeOptions& options) : Step("image.decode"), options_(options) {
  const int channels = options.channels;
  if (channels != 1 && channels != 3 && channels != 4) {
    refuse("channels is " + std::to_string(channels) + "; give 1, 3 or 4");
  }
}

std::string DecodeStep::arguments() const {
  return std::to_string(options_.channels) + (options_.fast ? ", fast" : "") +
         (options_.exif ? "" : ", exif=False") + (options_.partial ? ", partial" : "");
}

PictureSpec DecodeStep::result(const PictureSpec& in) const {
  if (in.form != PictureSpec::Form::kEncoded) refuse("the images are decoded already");
  return {.channels = options_.channels};
}

EncodeStep::EncodeStep(const EncodeOptions& options) : Step("image.encode"), options_(options) {
  if (options.quality < 1 || options.quality > 100) {
    refuse("quality is " + std::to_string(options.quality) + "; give 1 to 100");
  }
}

std::string EncodeStep::arguments() const {
  return options_.as == Encoding::kPng ? "png" : "jpeg, " + std::to_string(options_.quality);
}

PictureSpec EncodeStep::result(const PictureSpec& in) const {
  check_bytes(in);
  check(in.height, in.width, in.channels);
  return {.form = PictureSpec::Form::kEncoded};
}

void EncodeStep::apply(Picture& picture, RandomStream&) const {
  check(picture.height(), picture.width(), picture.channels());
}

void EncodeStep::check(int64_t height, int64_t width, int64_t channels) const {
  const bool jpeg = options_.as == Encoding::kJpeg;
  if (channels > 4 || channels == 0 || (jpeg && (channels == 2 || channels == 4))) {
    refuse("the image has " + std::to_string(channels) + " channels, and a " +
           (jpeg ? "JPEG has 1 or 3" : "PNG has 1 to 4"));
  }
  if (jpeg && (height > kMaxJpegSide || width > kMaxJpegSide)) {
    refuse("the image is " + std::to_string(height) + " x " + std::to_string(width) +
           ", and a JPEG has at most " + std::to_string(kMaxJpegSide) + " rows and columns");
  }
}

static std::string title_of(const Step& step, const Fields& fields) {
  std::string text = std::string(step.name()) + "(" + step.arguments();
  auto add = [&text](const std::string& more) { text += (text.back() == '(' ? "" : ", ") + more; };
  if (fields.images != std::vector<std::string>{"image"}) {
    for (const std::string& field : fields.images) add(field);
  }
  for (const std::string& field : fields.masks) add("masks=" + field);
  if (fields.mask_fill != 0) add("mask_fill=" + std::to_string(fields.mask_fill));
  for (const std::string& field : fields.boxes) add("boxes=" + field);
  for (const std::string& field : fields.keypoints) add("keypoints=" + field);
  return text + ")";
}

// One image at a time. One thread.
class ImageOp::Run : public OpRun {
 public:
  struct Field {
    size_t leaf = 0;  // the same in the result
    Part part = Part::kImage;
    bool chw = false;    // in the result
    bool leads = false;  // the others follow this image
  };
  Run(const ImageOp& op, std::vector<Field> images, std::vector<Field> followers, Context& context)
      : op_(op),
        images_(std::move(images)),
        followers_(std::move(followers)),
        scratch_(context.scratch),
        decode_(dynamic_cast<const DecodeStep*>(op.steps_.front().step.get())),
        encode_(dynamic_cast<const EncodeStep*>(op.steps_.back().step.get())) {}

  void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
    for (uint32_t j = 0; j < keys.size(); ++j, ++row) {
      for (const Field& field : images_) {
        if ((in.alive() & out.alive()) >> row & 1) make(keys, j, in, field, out, row);
      }
    }
  }

 private:
  void make(const Keys& keys, uint32_t j, const Chunk& in, const Field& field, Chunk& out,
            uint32_t row) {
    const Placed* placed = &op_.steps_.front();
    try {
      open(in, field.leaf, row, *placed->step);
      const int height = picture_.height(), width = picture_.width();
      for (const Placed& each : op_.steps_) {
        placed = &each;
        const uint32_t operation = each.operation == 0 ? keys.operation() : each.operation;
        RandomStream rng({keys.seed(), keys.epoch(), keys.position(j), operation});
        each.step->apply(picture_, rng);
      }
      if (field.leads) {
        for (const Field& follower : followers_) follow(in, follower, height, width, out, row);
      }
      write(picture_, field, out, row);
    } catch (const Error& error) {
      // Bytes are only decoded when the result is written.
      if (decode_ != nullptr && error.operation() == decode_->name()) placed = &op_.steps_.front();
      out.fail(row, {"map(" + placed->title + ")", 0, std::current_exception()});
    }
  }

  // `height`, `width`: of the image before it was moved.
  void follow(const Chunk& in, const Field& field, int height, int width, Chunk& out,
              uint32_t row) {
    const Leaf& about = in.spec()->leaves()[field.leaf];
    const std::span<const int64_t> shape = in.shape(field.leaf, row);
    if (field.part == Part::kMask) {
      if (shape[0] != height || shape[1] != width) {
        throw Error(Code::kInvalidArgument, op_.steps_.back().step->name(),
                    "the mask '" + about.name + "' is " + std::to_string(shape[0]) + " x " +
                        std::to_string(shape[1]) + ", and its image " + std::to_string(height) +
                        " x " + std::to_string(width) + ": give masks of the image's size");
      }
      mask_.open(view_of(in, field.leaf, row, *op_.steps_.back().step));
      for (const Move& move : picture_.moves()) mask_.repeat(move, op_.fields_.mask_fill);
      return write(mask_, field, out, row);
    }
    const auto step = static_cast<size_t>(shape.back());
    const uint64_t count = values_of(shape), bytes = count * sizeof(float);
    if (count > 0 && step < (field.part == Part::kBoxes ? 4 : 2)) {
      op_.check_numbers({about.name, about.kind, about.dtype, {shape.begin(), shape.end()}},
                        field.part);
    }
    std::byte* to = place_row(out, field.leaf, row, bytes, shape, scratch_);
    if (count == 0) return;
    numbers_.resize(count);
    std::memcpy(numbers_.data(), in.at(field.leaf, row), bytes);
    for (const Move& move : picture_.moves()) {
      (field.part == Part::kBoxes ? move_boxes : move_keypoints)(move, step, numbers_);
    }
    std::memcpy(to, numbers_.data(), bytes);
  }

  void open(const Chunk& in, size_t leaf, uint32_t row, const Step& step) {
    if (decode_ == nullptr) return picture_.open(view_of(in, leaf, row, step));
    const auto size = static_cast<size_t>(in.shape(leaf, row)[0]);
    picture_.open({in.at(leaf, row), size}, decode_->options());
  }

  // Error kInvalidArgument: an image without pixels, or with too many.
  static ImageView view_of(const Chunk& in, size_t leaf, uint32_t row, const Step& step) {
    constexpr int64_t kMaxChannels = 1024;
    const std::span<const int64_t> shape = in.shape(leaf, row);
    const int64_t channels = shape.size() == 2 ? 1 : shape[2];
    const uint64_t pixels = values_of(shape.first(2));
    if (pixels == 0 || pixels > kMaxPixels || channels == 0 || channels > kMaxChannels) {
      throw Error(Code::kInvalidArgument, step.name(),
                  "an image of shape " + to_string(Shape(shape.begin(), shape.end())));
    }
    const uint64_t value = size_of(in.spec()->leaves()[leaf].dtype);
    return {reinterpret_cast<const uint8_t*>(in.at(leaf, row)),
            static_cast<int>(shape[1]),
            static_cast<int>(shape[0]),
            static_cast<int>(channels),
            static_cast<uint64_t>(shape[1] * channels) * value,
            static_cast<int>(value)};
  }

  void write(Picture& picture, const Field& field, Chunk& out, uint32_t row) {
    if (encode_ != nullptr && field.part == Part::kImage) {
      encode(picture.pixels(), encode_->options(), encoded_);
      const auto size = static_cast<int64_t>(encoded_.size());
      std::byte* to = place_row(out, field.leaf, row, encoded_.size(), {&size, 1}, scratch_);
      std::memcpy(to, encoded_.data(), encoded_.size());
      return;
    }
    const Leaf& about = out.spec()->leaves()[field.leaf];
    const int64_t height = picture.height(), width = picture.width(), c = picture.channels();
    const std::array<int64_t, 3> sizes = field.chw ? std::array<int64_t, 3>{c, height, width}
                                                   : std::array<int64_t, 3>{height, width, c};
    const std::span<const int64_t> shape(sizes.data(), about.shape.size());
    const uint64_t bytes = values_of(shape) * size_of(about.dtype);
    picture.write(place_row(out, field.leaf, row, bytes, shape, scratch_));
  }

  const ImageOp& op_;
  const std::vector<Field> images_, followers_;
  Scratch& scratch_;
  const DecodeStep* const decode_;
  const EncodeStep* const encode_;
  Picture picture_, mask_;
  std::vector<uint8_t> encoded_;
  std::vector<float> numbers_;
};

ImageOp::ImageOp(StepRef step, Fields fields)
    : steps_{{step, 0, title_of(*step, fields)}}, fields_(std::move(fields)) {
  const char* name = step->name();
  if (fields_.images.empty()) {
    throw Error(Code::kInvalidArgument, name, "fields is empty; name a leaf");
  }
  for (const auto* names : {&fields_.images, &fields_.masks, &fields_.boxes, &fields_.keypoints}) {
    for (const std::string& field : *names) (void)utf8_name(field, name);
  }
}

std::string ImageOp::title() const { return steps_.back().title; }

std::vector<ImageOp::Part> ImageOp::parts(const ElementSpec& in) const {
  const char* name = steps_.front().step->name();
  std::vector<Part> parts(in.leaves().size());
  auto choose = [&](const std::vector<std::string>& names, Part part) {
    for (const std::string& field : names) {
      const auto leaf = in.find(field);
      if (!leaf) {
        throw Error(Code::kInvalidArgument, name,
                    "there is no field '" + field + "' in " + in.to_string() +
                        "; name the images by fields");
      }
      if (parts[*leaf] != Part::kNone && parts[*leaf] != part) {
        throw Error(Code::kInvalidArgument, name,
                    "'" + field + "' is named as two of an image, a mask, boxes and keypoints");
      }
      parts[*leaf] = part;
    }
  };
  choose(fields_.images, Part::kImage);
  choose(fields_.masks, Part::kMask);
  choose(fields_.boxes, Part::kBoxes);
  choose(fields_.keypoints, Part::kKeypoints);
  return parts;
}

PictureSpec ImageOp::result_of(const Leaf& leaf, Part part) const {
  PictureSpec spec = PictureSpec::of(leaf, steps_.front().step->name());
  for (const Placed& placed : steps_) {
    if (part == Part::kImage || placed.step->moves()) spec = placed.step->result(spec);
  }
  return spec;
}

void ImageOp::check_numbers(const Leaf& leaf, Part part) const {
  const int64_t least = part == Part::kBoxes ? 4 : 2;
  const bool array = leaf.kind == LeafKind::kDense || leaf.kind == LeafKind::kRagged;
  const bool numbers = array && leaf.dtype == DType::kFloat32;
  if (numbers && !leaf.shape.empty() && (leaf.shape.back() < 0 || leaf.shape.back() >= least)) {
    return;
  }
  throw Error(Code::kInvalidArgument, steps_.back().step->name(),
              "'" + leaf.name + "' is " + std::string(name_of(leaf.dtype)) + " " +
                  to_string(leaf.shape) +
                  (part == Part::kBoxes ? "; boxes are float32 (n, 4): x0, y0, x1, y1"
                                        : "; keypoints are float32 (n, 2): x, y"));
}

bool ImageOp::moves() const {
  return std::ranges::any_of(steps_, [](const Placed& placed) { return placed.step->moves(); });
}

SpecRef ImageOp::result(const ElementSpec& in) const {
  const std::vector<Part> parts = this->parts(in);
  std::vector<Leaf> leaves(in.leaves().begin(), in.leaves().end());
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (parts[i] == Part::kImage || parts[i] == Part::kMask) {
      leaves[i] = result_of(leaves[i], parts[i]).leaf(leaves[i].name);
    } else if (parts[i] != Part::kNone) {
      check_numbers(leaves[i], parts[i]);
    }
  }
  return std::make_shared<ElementSpec>(std::move(leaves), in.nest());
}

std::vector<std::optional<size_t>> ImageOp::passes(const ElementSpec& in) const {
  const std::vector<Part> parts = this->parts(in);
  std::vector<std::optional<size_t>> passes(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == Part::kNone) passes[i] = i;
  }
  return passes;
}

OpRef ImageOp::followed_by(uint32_t own, const Op& next, uint32_t operation) const {
  const auto* const other = dynamic_cast<const ImageOp*>(&next);
  if (other == nullptr || other->fields_.images != fields_.images) return nullptr;
  if (dynamic_cast<const EncodeStep*>(steps_.back().step.get()) != nullptr) return nullptr;
  // Masks, boxes and keypoints follow every move of the pass.
  const bool here = other->fields_.alone() && !other->moves();
  if (other->fields_ != fields_ && !here && !(fields_.alone() && !moves())) return nullptr;
  std::vector<Placed> steps = steps_;
  if (steps.size() == 1) steps.front().operation = own;
  for (Placed placed : other->steps_) {
    placed.operation = operation;
    steps.push_back(std::move(placed));
  }
  return OpRef(new ImageOp(std::move(steps), here ? fields_ : other->fields_));
}

std::unique_ptr<OpRun> ImageOp::bind(SpecRef in, Context& context) const {
  const std::vector<Part> parts = this->parts(*in);
  const size_t leader = in->find(fields_.images.front()).value();
  std::vector<Run::Field> images, followers;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == Part::kImage) {
      images.push_back({i, parts[i], result_of(in->leaves()[i], parts[i]).chw, i == leader});
    } else if (parts[i] != Part::kNone) {
      followers.push_back({i, parts[i]});
    }
  }
  return std::make_unique<Run>(*this, std::move(images), std::move(followers), context);
}

}  // namespace penstock::image
