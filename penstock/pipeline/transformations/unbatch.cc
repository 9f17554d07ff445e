#include "penstock/pipeline/transformations/unbatch.h"

#include <array>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/builder.h"
#include "penstock/pipeline/indexed_stream.h"
#include "penstock/pipeline/stream_input.h"

namespace penstock {
namespace {

SpecRef row_of(const ElementSpec& element) {
  std::vector<Leaf> leaves(element.leaves().begin(), element.leaves().end());
  for (Leaf& leaf : leaves) {
    const bool text = leaf.kind == LeafKind::kBytes || leaf.kind == LeafKind::kText;
    if (text || leaf.shape.empty()) {
      throw Error(Code::kInvalidArgument, "unbatch",
                  "'" + leaf.name + "' of " + element.to_string() + " has no rows");
    }
    leaf.kind = LeafKind::kDense;
    leaf.shape.erase(leaf.shape.begin());
  }
  return std::make_shared<ElementSpec>(std::move(leaves), element.nest());
}

class Unbatch : public Streamed {
 public:
  explicit Unbatch(StreamedRef input) : input_(std::move(input)) {
    if (SpecRef in = input_->spec()) spec_ = row_of(*in);
  }

  SpecRef spec() const override { return spec_; }
  std::optional<uint64_t> length() const override {
    SpecRef in = input_->spec();
    auto all = input_->length();
    if (all == uint64_t{0}) return all;
    if (in == nullptr || !all || in->leaves().empty()) return std::nullopt;
    const int64_t first = in->leaves()[0].shape[0];
    for (const Leaf& leaf : in->leaves()) {
      if (leaf.shape[0] < 0 || leaf.shape[0] != first) return std::nullopt;
    }
    const auto rows = static_cast<uint64_t>(first);
    uint64_t product;
    if (rows == 0) return 0;
    return __builtin_mul_overflow(*all, rows, &product) ? kEndless : product;
  }
  bool python() const override { return input_->python(); }
  std::unique_ptr<StreamReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public StreamReader {
   public:
    Reader(const Unbatch& stage, Context& context)
        : stage_(stage), input_(*stage.input_, context) {}

    void begin(uint64_t epoch) override {
      input_.begin(epoch);
      row_ = 0;
    }

    // Rows of as many of the chunk's elements as go into `out`.
    uint32_t next(uint32_t most, Chunk& out) override {
      uint32_t count = 0;
      while (count == 0 && input_.more()) {
        while (count < most && input_.left() > 0) {
          const uint32_t element = input_.row();
          const uint64_t rows = rows_of_next();
          while (count < most && row_ < rows) from_[count++] = {element, row_++};
          if (row_ < rows) break;
          input_.use();
          row_ = 0;
        }
      }
      if (count == 0) return 0;
      give(count, out);
      return count;
    }

    State save() const override { return {{"row", row_}, {"input", input_.save()}}; }
    void load(uint64_t epoch, const State& state) override {
      const uint64_t row = count_in(state, "row");
      input_.load(epoch, member_of(state, "input"));
      row_ = 0;
      if (row == 0) return;
      if (!input_.more() || row >= rows_of_next()) {
        throw Error(Code::kInvalidArgument, "restore", "the state is beyond its element's rows");
      }
      row_ = row;
      // What was lost on the way to the element was told with its first row.
      (void)input_.chunk().take_notes(input_.row());
    }

   private:
    // One of an element that failed, or cannot be taken apart.
    uint64_t rows_of_next() {
      Chunk& in = input_.chunk();
      const uint32_t element = input_.row();
      if (input_.failed()) return 1;
      try {
        if (in.spec() != of_) {
          of_ = nullptr;
          told_ = row_of(*in.spec());
          of_ = in.spec();
        }
        const ElementSpec& spec = *in.spec();
        if (spec.leaves().empty()) return 0;
        const int64_t rows = in.shape(0, element)[0];
        for (size_t leaf = 1; leaf < spec.leaves().size(); ++leaf) {
          if (in.shape(leaf, element)[0] == rows) continue;
          throw Error(Code::kInvalidArgument, "unbatch",
                      "'" + spec.leaves()[0].name + "' has " + std::to_string(rows) +
                          " rows, and '" + spec.leaves()[leaf].name + "' has " +
                          std::to_string(in.shape(leaf, element)[0]));
        }
        return static_cast<uint64_t>(rows);
      } catch (const Error&) {
        in.fail(element, {"unbatch()", input_.ordinal() + element, std::current_exception()});
        return 1;
      }
    }

    void give(uint32_t count, Chunk& out) {
      Chunk& in = input_.chunk();
      out.reset(stage_.spec_, count);
      for (uint32_t i = 0; i < count; ++i) {
        const auto [element, row] = from_[i];
        if ((in.alive() >> element & 1) == 0) {
          pass_row(in, element, out, i);
          continue;
        }
        for (Failure& lost : in.take_notes(element)) out.note(i, std::move(lost));
        settle_alike(told_, out);
        for (size_t leaf = 0; leaf < told_->leaves().size(); ++leaf) {
          std::span<const int64_t> shape = in.shape(leaf, element).subspan(1);
          uint64_t bytes = size_of(told_->leaves()[leaf].dtype);
          for (int64_t length : shape) bytes *= static_cast<uint64_t>(length);
          out.view(leaf, i, in.at(leaf, element) + row * bytes, shape);
        }
      }
    }

    struct From {
      uint32_t element;  // of the input's chunk
      uint64_t row;
    };
    const Unbatch& stage_;
    StreamInput input_;
    std::array<From, Chunk::kRows> from_;
    SpecRef of_, told_;  // what elements of the chunk are, and their rows
    uint64_t row_ = 0;   // of the input's next element
  };

  StreamedRef input_;
  SpecRef spec_;
};

}  // namespace

Built UnbatchNode::build(std::vector<Built> inputs, Builder& builder) const {
  return Built::of(std::make_shared<Unbatch>(builder.as_stream(inputs[0])));
}

}  // namespace penstock
