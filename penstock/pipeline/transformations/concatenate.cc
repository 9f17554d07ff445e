#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/inputs.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

class Concatenate : public IndexedInputs {
 public:
  explicit Concatenate(std::vector<IndexedRef> inputs)
      : IndexedInputs(std::move(inputs), "concatenate") {}

  uint64_t length(uint64_t base) const override {
    uint64_t sum = 0;
    for (const IndexedRef& input : inputs()) {
      uint64_t own = input->length(base);
      if (own == kEndless || __builtin_add_overflow(sum, own, &sum)) return kEndless;
    }
    return sum;
  }
  std::string origin(const Context& context, const At& at, uint64_t position) const override {
    for (const IndexedRef& input : inputs()) {
      const uint64_t length = input->length(at.base);
      if (position < length) return input->origin(context, at, position);
      position -= length;
    }
    return {};
  }
  std::vector<uint64_t> blocks() const override {
    std::vector<uint64_t> ends;
    uint64_t begin = 0;
    for (const IndexedRef& input : inputs()) {
      const std::vector<uint64_t> own = input->blocks();
      if (own.empty() && input->length(0) > 0) return {};
      for (uint64_t end : own) ends.push_back(begin + end);
      begin += own.empty() ? 0 : own.back();
    }
    return ends;
  }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Concatenate& stage, Context& context)
        : stage_(stage), readers_(stage.inputs(), "concatenate", context) {}

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      find_ends(at.base);
      size_t end = 0;
      for (size_t i = 0; i < positions.size(); i = end) {
        auto input = static_cast<size_t>(
            std::upper_bound(ends_.begin(), ends_.end(), positions[i]) - ends_.begin());
        const uint64_t first = input == 0 ? 0 : ends_[input - 1];
        for (; end < positions.size(); ++end) {
          if (positions[end] < first || positions[end] >= ends_[input]) break;
          inside_[end] = positions[end] - first;
        }
        readers_.fetch(input, at, std::span<const uint64_t>(&inside_[i], end - i), out,
                       static_cast<uint32_t>(row + i));
      }
    }

   private:
    void find_ends(uint64_t base) {
      if (!ends_.empty() && base == base_) return;
      base_ = base;
      ends_.clear();
      uint64_t sum = 0;
      for (const IndexedRef& input : stage_.inputs()) {
        if (__builtin_add_overflow(sum, input->length(base), &sum)) sum = kEndless;
        ends_.push_back(sum);
      }
    }

    const Concatenate& stage_;
    InputReaders readers_;
    uint64_t base_ = 0;
    std::vector<uint64_t> ends_;  // of each input, at base_
    std::array<uint64_t, Chunk::kRows> inside_;
  };
};

class ConcatenateStream : public StreamInputs {
 public:
  explicit ConcatenateStream(std::vector<StreamedRef> inputs)
      : StreamInputs(std::move(inputs), "concatenate") {}

  std::optional<uint64_t> length() const override { return total_length(inputs()); }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const ConcatenateStream& stage, Context& context)
        : stage_(stage),
          context_(context),
          readers_(stage.inputs().size()),
          rows_(context.scratch) {}

    void begin(uint64_t epoch) override {
      epoch_ = epoch;
      which_ = given_ = 0;
      schema_.begin();
      reader().begin(epoch_);
    }
    uint32_t next(uint32_t most, Chunk& out) override {
      for (;;) {
        if (const uint32_t count = give(most, out); count != 0) {
          given_ += count;
          return count;
        }
        if (which_ + 1 == readers_.size()) return 0;
        ++which_;
        reader().begin(epoch_);
      }
    }
    void release() override {
      if (readers_[which_] != nullptr) readers_[which_]->release();
    }
    State save() const override {
      State state = {{"which", which_}, {"given", given_}, {"input", readers_[which_]->save()}};
      schema_.save(state);
      return state;
    }
    void load(uint64_t epoch, const State& state) override {
      const uint64_t which = count_in(state, "which");
      if (which >= readers_.size()) {
        throw Error(Code::kInvalidArgument, "restore", "the state is of more inputs");
      }
      epoch_ = epoch;
      which_ = which;
      given_ = state.contains("given") ? count_in(state, "given") : 0;
      reader().load(epoch, member_of(state, "input"));
      schema_.load(state);
    }

   private:
    uint32_t give(uint32_t most, Chunk& out) {
      if (stage_.spec() == nullptr) {
        const uint32_t count = reader().next(most, out);
        if (count == 0) return 0;
        schema_.hold(
            out, [&](uint32_t row) { return given_ + row; }, "concatenate");
        return count;
      }
      // The rows' own spec may know lengths that the stage's spec leaves open.
      const uint32_t count = reader().next(most, rows_);
      if (count == 0) return 0;
      out.reset(stage_.spec(), count);
      for (uint32_t i = 0; i < count; ++i) pass_row(rows_, i, out, i);
      out.keep_owners_of(rows_);
      return count;
    }

    ElementReader& reader() {
      auto& opened = readers_[which_];
      if (opened == nullptr) opened = stage_.inputs()[which_]->open(context_);
      return *opened;
    }

    const ConcatenateStream& stage_;
    Context& context_;
    std::vector<std::unique_ptr<ElementReader>> readers_;
    Chunk rows_;
    SchemaChecker schema_{stage_.spec()};
    uint64_t epoch_ = 0, given_ = 0;
    size_t which_ = 0;
  };
};

}  // namespace

Node::Ref nodes::concatenate(std::vector<Node::Ref> inputs) {
  if (inputs.empty()) {
    throw Error(Code::kInvalidArgument, "concatenate", "there are no inputs");
  }
  return make_node({
      .title = "concatenate(" + std::to_string(inputs.size()) + ")",
      .inputs = std::move(inputs),
      .build = [](std::vector<Built> built, Builder& builder) -> Built {
        if (any_stream(built)) {
          return Built::of(std::make_shared<ConcatenateStream>(builder.as_streams(built)));
        }
        return {std::make_shared<Concatenate>(indexed_of(built))};
      },
  });
}

}  // namespace penstock
