#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/random.h"
#include "penstock/image/encode.h"
#include "penstock/image/picture.h"
#include "penstock/image/random_box.h"
#include "penstock/pipeline/stages/op.h"

namespace penstock::image {

// Names of the leaves that an operation works on. Those beside the images follow the first of them
// through operations that move pixels, and are passed on by others.
struct Fields {
  Fields(std::initializer_list<std::string> names) : images(names) {}
  Fields(std::vector<std::string> names) : images(std::move(names)) {}

  std::vector<std::string> images;
  // Of the image's height and width, uint8 or float32; no value becomes another one.
  std::vector<std::string> masks;
  // float32 {..., 4 or more}, {..., 2 or more}: see move_boxes and move_keypoints. Coordinates are
  // those of the decoded image.
  std::vector<std::string> boxes, keypoints;
  uint8_t mask_fill = 0;  // of a mask's pixels where the image is filled with one value

  bool alone() const { return masks.empty() && boxes.empty() && keypoints.empty(); }
  bool operator==(const Fields&) const = default;
};

// What is known of an image before there is one. A value.
struct PictureSpec {
  enum class Form : uint8_t { kEncoded, kPixels, kFloats };
  Form form = Form::kPixels;
  bool floats = false;  // pixels are float32, else uint8
  bool chw = false;
  bool flat = false;                               // no axis of channels
  int64_t height = -1, width = -1, channels = -1;  // -1: differs

  // Error kInvalidArgument: the leaf is no image.
  static PictureSpec of(const Leaf& leaf, const char* operation);
  Leaf leaf(std::string name) const;
};

// One operation on an image. Immutable: any thread.
class Step {
 public:
  explicit Step(const char* name) : name_(name) {}
  virtual ~Step() = default;
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  const char* name() const { return name_; }            // "image.resize"
  virtual std::string arguments() const { return {}; }  // in the title
  // What becomes of such images. Error kInvalidArgument: it cannot be applied to them.
  virtual PictureSpec result(const PictureSpec& in) const = 0;
  // Error kInvalidArgument: it cannot be applied to this image.
  virtual void apply(Picture& picture, RandomStream& rng) const = 0;
  // It may move pixels: masks, boxes and keypoints follow.
  virtual bool moves() const { return false; }
  // How many numbers are all that it draws for an image; 0: other things are drawn, or nothing.
  virtual size_t parameters() const { return 0; }
  // Draws them for an image of this size, as apply() does. Error kInvalidArgument: as apply().
  virtual void draw(int height, int width, RandomStream& rng, double* to) const {
    (void)height, (void)width, (void)rng, (void)to;
  }

 protected:
  // Error kInvalidArgument: the images are no pixels, or an operation that must be last was before.
  void check_pixels(const PictureSpec& in) const;
  // The same, and the pixels are uint8.
  void check_bytes(const PictureSpec& in) const;
  void check_probability(double p) const;
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  const char* const name_;
};
using StepRef = std::shared_ptr<const Step>;

// Decoding, which comes first.
class DecodeStep : public Step {
 public:
  explicit DecodeStep(const DecodeOptions& options);
  std::string arguments() const override;
  PictureSpec result(const PictureSpec& in) const override;
  void apply(Picture&, RandomStream&) const override {}
  const DecodeOptions& options() const { return options_; }

 private:
  DecodeOptions options_;
};

// A box as parameters: left, top, width, height.
inline void put_box(const CropBox& box, double* to) {
  to[0] = box.x;
  to[1] = box.y;
  to[2] = box.width;
  to[3] = box.height;
}
// A number in a title or an error.
std::string number(double value);
std::string listed(const std::vector<double>& numbers);  // "(1, 2)", or "1" alone
// Encoding, which comes last.
class EncodeStep : public Step {
 public:
  explicit EncodeStep(const EncodeOptions& options);
  std::string arguments() const override;
  PictureSpec result(const PictureSpec& in) const override;
  void apply(Picture& picture, RandomStream&) const override;
  const EncodeOptions& options() const { return options_; }

 private:
  void check(int64_t height, int64_t width, int64_t channels) const;  // -1: unknown

  EncodeOptions options_;
};

// Steps on some leaves, one pass over each image.
class ImageOp : public Op {
 public:
  // Error kInvalidArgument: no fields, or one twice.
  ImageOp(StepRef step, Fields fields);

  std::string title() const override;
  SpecRef result(const ElementSpec& in) const override;
  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override;
  bool costly() const override { return true; }
  OpRef followed_by(uint32_t own, const Op& next, uint32_t operation) const override;
  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override;

  // Of an operation that stands alone.
  const StepRef& step() const { return steps_.front().step; }
  const Fields& fields() const { return fields_; }

 private:
  struct Placed {
    StepRef step;
    uint32_t operation = 0;  // keys its random numbers; 0: the stage's own
    std::string title;
  };
  enum class Part : uint8_t { kNone, kImage, kMask, kBoxes, kKeypoints };
  class Run;
  ImageOp(std::vector<Placed> steps, Fields fields)
      : steps_(std::move(steps)), fields_(std::move(fields)) {}
  // What each leaf is to the operation.
  std::vector<Part> parts(const ElementSpec& in) const;
  PictureSpec result_of(const Leaf& leaf, Part part) const;
  void check_numbers(const Leaf& leaf, Part part) const;
  bool moves() const;

  std::vector<Placed> steps_;
  Fields fields_;
};

template <class S, class... Arguments>
OpRef step_op(Fields fields, Arguments&&... arguments) {
  return std::make_shared<ImageOp>(std::make_shared<S>(std::forward<Arguments>(arguments)...),
                                   std::move(fields));
}

}  // namespace penstock::image
