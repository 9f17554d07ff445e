#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/stages/op.h"
#include "penstock/pipeline/transformations/image_operations.h"

namespace penstock::image {
namespace {

constexpr const char* kSanitize = "image.sanitize_boxes";

class SanitizeOp : public Op {
 public:
  explicit SanitizeOp(SanitizeOptions options) : options_(std::move(options)) {
    (void)utf8_name(options_.boxes, kSanitize);
    for (const std::string& field : options_.labels) (void)utf8_name(field, kSanitize);
    if (!(options_.min_size >= 0) || !(options_.min_area >= 0)) {
      throw refused("min_size and min_area are numbers from 0 on");
    }
  }

  std::string title() const override {
    std::string text = std::string(kSanitize) + "(" + options_.boxes;
    for (const std::string& field : options_.labels) text += ", labels=" + field;
    auto add = [&](const char* name, float least) {
      std::string number = std::to_string(least);
      number.erase(number.find_last_not_of('0') + 1);
      if (number.back() == '.') number.pop_back();
      if (least != 1) text += std::string(", ") + name + "=" + number;
    };
    add("min_size", options_.min_size);
    add("min_area", options_.min_area);
    return text + ")";
  }

  SpecRef result(const ElementSpec& in) const override {
    std::vector<Leaf> leaves(in.leaves().begin(), in.leaves().end());
    for (size_t leaf : chosen(in)) {
      leaves[leaf].kind = LeafKind::kRagged;
      leaves[leaf].shape[0] = -1;
    }
    return std::make_shared<ElementSpec>(std::move(leaves), in.nest());
  }

  std::vector<std::optional<size_t>> passes(const ElementSpec& in) const override {
    std::vector<std::optional<size_t>> passes(in.leaves().size());
    for (size_t i = 0; i < passes.size(); ++i) passes[i] = i;
    for (size_t leaf : chosen(in)) passes[leaf].reset();
    return passes;
  }

  std::unique_ptr<OpRun> bind(SpecRef in, Context& context) const override {
    return std::make_unique<Run>(*this, chosen(*in), context.scratch);
  }

 private:
  class Run : public OpRun {
   public:
    Run(const SanitizeOp& op, std::vector<size_t> leaves, Scratch& scratch)
        : options_(op.options_), leaves_(std::move(leaves)), scratch_(scratch) {}

    void run(const Keys& keys, const Chunk& in, Chunk& out, uint32_t row) override {
      each_alive(in.alive() & out.alive(), row, row + keys.size(), [&](uint32_t i) {
        try {
          choose(in, i);
          for (size_t leaf : leaves_) copy(in, leaf, out, i);
        } catch (const Error&) {
          out.fail(i, {"", 0, std::current_exception()});
        }
      });
    }

   private:
    // Comparisons with not-a-number are false, so boxes with one are removed.
    void choose(const Chunk& in, uint32_t row) {
      const std::span<const int64_t> shape = in.shape(leaves_[0], row);
      const std::byte* box = in.at(leaves_[0], row);
      kept_.clear();
      for (int64_t i = 0; i < shape[0]; ++i) {
        float edges[4];
        std::memcpy(edges, box + static_cast<uint64_t>(i * shape[1]) * sizeof(float),
                    sizeof(edges));
        const float width = edges[2] - edges[0], height = edges[3] - edges[1];
        if (width >= options_.min_size && height >= options_.min_size && width > 0 && height > 0 &&
            width * height >= options_.min_area) {
          kept_.push_back(i);
        }
      }
      count_ = shape[0];
    }

    void copy(const Chunk& in, size_t leaf, Chunk& out, uint32_t row) {
      const Leaf& about = in.spec()->leaves()[leaf];
      const std::span<const int64_t> own = in.shape(leaf, row);
      if (own[0] != count_) {
        throw refused("'" + about.name + "' has " + std::to_string(own[0]) + " rows for " +
                      std::to_string(count_) + " boxes");
      }
      shape_.assign(own.begin(), own.end());
      shape_[0] = static_cast<int64_t>(kept_.size());
      const uint64_t bytes = values_of(own.subspan(1)) * size_of(about.dtype);
      const std::byte* from = in.at(leaf, row);
      std::byte* to = place_row(out, leaf, row, bytes * kept_.size(), shape_, scratch_);
      for (int64_t i : kept_) {
        if (bytes > 0) std::memcpy(to, from + static_cast<uint64_t>(i) * bytes, bytes);
        to += bytes;
      }
    }

    const SanitizeOptions& options_;
    const std::vector<size_t> leaves_;
    Scratch& scratch_;
    std::vector<int64_t> kept_;  // the numbers of the boxes that stay, in order
    int64_t count_ = 0;          // of all boxes
    Shape shape_;
  };

  static Error refused(const std::string& why) { return {Code::kInvalidArgument, kSanitize, why}; }

  // The leaf of the boxes, then those of the labels.
  std::vector<size_t> chosen(const ElementSpec& in) const {
    std::vector<size_t> leaves;
    auto add = [&](const std::string& field) {
      const auto leaf = in.find(field);
      if (!leaf) throw refused("there is no field '" + field + "' in " + in.to_string());
      for (size_t other : leaves) {
        if (other == *leaf) throw refused("'" + field + "' is named twice");
      }
      leaves.push_back(*leaf);
      return in.leaves()[*leaf];
    };
    const auto numbers = [](const Leaf& leaf) {
      return leaf.kind == LeafKind::kDense || leaf.kind == LeafKind::kRagged;
    };
    const Leaf boxes = add(options_.boxes);
    const bool fits = numbers(boxes) && boxes.dtype == DType::kFloat32 && boxes.shape.size() == 2;
    if (!fits || boxes.shape[1] < 4) {
      throw refused("'" + boxes.name + "' is " + std::string(name_of(boxes.dtype)) + " " +
                    to_string(boxes.shape) + "; boxes are float32 (n, 4): x0, y0, x1, y1");
    }
    for (const std::string& field : options_.labels) {
      const Leaf labels = add(field);
      const bool same = labels.shape.empty() || labels.shape[0] < 0 || boxes.shape[0] < 0 ||
                        labels.shape[0] == boxes.shape[0];
      if (!numbers(labels) || labels.shape.empty() || !same) {
        throw refused("'" + field + "' is " + std::string(name_of(labels.dtype)) + " " +
                      to_string(labels.shape) + "; give an array with a row for each box");
      }
    }
    return leaves;
  }

  const SanitizeOptions options_;
};

}  // namespace

OpRef sanitize_boxes(SanitizeOptions options) {
  return std::make_shared<SanitizeOp>(std::move(options));
}

}  // namespace penstock::image
