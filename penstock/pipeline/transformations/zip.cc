#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/element.h"
#include "penstock/pipeline/element/given.h"
#include "penstock/pipeline/plan/builder.h"
#include "penstock/pipeline/stages/inputs.h"
#include "penstock/pipeline/streams/stream_input.h"
#include "penstock/pipeline/streams/streams.h"
#include "penstock/pipeline/transformations/transformations.h"

namespace penstock {
namespace {

// nullptr: an input's spec is not known.
template <class Ref>
SpecRef combined_of(const std::vector<Ref>& inputs, const std::vector<std::string>& names) {
  std::vector<SpecRef> specs;
  for (const Ref& input : inputs) specs.push_back(input->spec());
  if (std::ranges::find(specs, nullptr) != specs.end()) return nullptr;
  return combined_spec(specs, names);
}

class Zip : public IndexedInputs {
 public:
  Zip(std::vector<IndexedRef> inputs, SpecRef spec, std::vector<std::string> names)
      : IndexedInputs(std::move(inputs), std::move(spec)), names_(std::move(names)) {}

  uint64_t length(uint64_t base) const override {
    uint64_t least = kEndless;
    for (const IndexedRef& input : inputs()) least = std::min(least, input->length(base));
    return least;
  }
  std::unique_ptr<IndexedReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public IndexedReader {
   public:
    Reader(const Zip& stage, Context& context) : stage_(stage) {
      for (const IndexedRef& input : stage.inputs()) {
        readers_.push_back(input->open(context));
        rows_.push_back(std::make_unique<InputRows>(context.scratch));
      }
    }

    void fetch(const At& at, std::span<const uint64_t> positions, Chunk& out,
               uint32_t row) override {
      bool made = true;
      size_t first = 0;  // first leaf of the input; nothing is bound while the specs are inferred
      for (size_t i = 0; i < readers_.size(); ++i) {
        SpecRef spec = stage_.inputs()[i]->spec();
        rows_[i]->fetch(*readers_[i], spec, at, positions, out, row, first);
        if (stage_.spec() != nullptr) first += spec->leaves().size();
        made &= rows_[i]->spec() != nullptr;
      }
      if (!made) return;  // no element is complete
      if (stage_.spec() == nullptr && !settle(out)) {
        const auto error = std::make_exception_ptr(schema_error(*out.spec(), *spec_));
        for (size_t i = 0; i < positions.size(); ++i) {
          out.fail(static_cast<uint32_t>(row + i), {"zip", positions[i], error});
        }
        return;
      }
      first = 0;
      for (const auto& rows : rows_) {
        rows->forward(out, first);
        first += rows->spec()->leaves().size();
      }
    }

   private:
    bool settle(Chunk& out) {
      bool changed = input_specs_.size() != rows_.size();
      input_specs_.resize(rows_.size());
      for (size_t i = 0; i < rows_.size(); ++i) {
        changed |= std::exchange(input_specs_[i], rows_[i]->spec()) != rows_[i]->spec();
      }
      if (changed) spec_ = combined_spec(input_specs_, stage_.names_);
      return out.settle(spec_);
    }

    const Zip& stage_;
    std::vector<std::unique_ptr<IndexedReader>> readers_;
    std::vector<std::unique_ptr<InputRows>> rows_;
    std::vector<SpecRef> input_specs_;  // specs of the inputs' elements; spec_ combines them
    SpecRef spec_;
  };

  std::vector<std::string> names_;
};

class ZipStream : public StreamInputs {
 public:
  ZipStream(std::vector<StreamedRef> inputs, SpecRef spec, std::vector<std::string> names)
      : StreamInputs(std::move(inputs), std::move(spec)), names_(std::move(names)) {}

  std::optional<uint64_t> length() const override {
    uint64_t least = kEndless;
    for (const StreamedRef& input : inputs()) {
      auto own = input->length();
      if (!own) return own;
      least = std::min(least, *own);
    }
    return least;
  }
  std::unique_ptr<ElementReader> reader(Context& context) const override {
    return std::make_unique<Reader>(*this, context);
  }

 private:
  class Reader : public ElementReader {
   public:
    Reader(const ZipStream& stage, Context& context) : stage_(stage) {
      for (const StreamedRef& input : stage.inputs()) {
        inputs_.push_back(std::make_unique<StreamInput>(*input, context));
      }
    }

    void begin(uint64_t epoch) override {
      for (const auto& input : inputs_) input->begin(epoch);
    }

    uint32_t next(uint32_t most, Chunk& out) override {
      uint32_t count = most;
      for (const auto& input : inputs_) {
        if (!input->more()) return trailing_losses(out);
        count = std::min(count, input->left());
      }
      out.reset(stage_.spec(), count);
      for (const auto& input : inputs_) forward_losses(*input, count, out);
      if (out.alive() != 0) forward(count, out);
      for (const auto& input : inputs_) input->use(count);
      return count;
    }

    void release() override {
      picked_.forget();
      for (const auto& input : inputs_) input->release();
    }
    State save() const override {
      State inputs = State::array();
      for (const auto& input : inputs_) inputs.push_back(input->save());
      return {{"inputs", std::move(inputs)}};
    }
    void load(uint64_t epoch, const State& state) override {
      const State& inputs = member_of(state, "inputs");
      if (!inputs.is_array() || inputs.size() != inputs_.size()) {
        throw Error(Code::kInvalidArgument, "restore", "the state is of another number of inputs");
      }
      for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i]->load(epoch, inputs[i]);
    }

   private:
    // After an input ended, gives the losses after the other inputs' last elements.
    uint32_t trailing_losses(Chunk& out) {
      picked_.forget();
      for (const auto& input : inputs_) {
        if (input->left() > 0 && !input->placed() && picked_.size() < Chunk::kRows) {
          picked_.add(*input);
        }
      }
      return picked_.size() == 0 ? 0 : picked_.give(nullptr, out);
    }

    static void forward_losses(StreamInput& input, uint32_t count, Chunk& out) {
      for (auto& [row, failure] : input.chunk().failures()) {
        if (row < input.row() || row - input.row() >= count) continue;
        out.fail(row - input.row(), std::move(failure));
      }
      for (uint32_t i = 0; i < count; ++i) {
        for (Failure& lost : input.chunk().take_notes(input.row() + i)) {
          out.note(i, std::move(lost));
        }
      }
    }

    void forward(uint32_t count, Chunk& out) {
      if (!out.settle(stage_.spec() != nullptr ? stage_.spec() : found_spec())) {
        throw Error(Code::kInternal, "zip", "elements of two specs in one chunk");
      }
      size_t leaf = 0;
      for (const auto& input : inputs_) {
        const Chunk& in = input->chunk();
        for (size_t own = 0; own < in.spec()->leaves().size(); ++own, ++leaf) {
          for (uint32_t i = 0; i < count; ++i) {
            if ((out.alive() >> i & 1) == 0) continue;
            const uint32_t row = input->row() + i;
            out.view(leaf, i, in.at(own, row), in.shape(own, row));
          }
        }
      }
    }

    SpecRef found_spec() {
      bool changed = input_specs_.size() != inputs_.size();
      input_specs_.resize(inputs_.size());
      for (size_t i = 0; i < inputs_.size(); ++i) {
        const SpecRef& spec = inputs_[i]->chunk().spec();
        changed |= std::exchange(input_specs_[i], spec) != spec;
      }
      if (changed) spec_ = combined_spec(input_specs_, stage_.names_);
      return spec_;
    }

    const ZipStream& stage_;
    std::vector<std::unique_ptr<StreamInput>> inputs_;
    PickedRows picked_;
    std::vector<SpecRef> input_specs_;  // specs of the inputs' elements; spec_ combines them
    SpecRef spec_;
  };

  std::vector<std::string> names_;
};

}  // namespace

IndexedRef zipped(std::vector<IndexedRef> inputs, std::vector<std::string> names) {
  SpecRef spec = combined_of(inputs, names);
  return std::make_shared<Zip>(std::move(inputs), std::move(spec), std::move(names));
}

Node::Ref nodes::zip(std::vector<Node::Ref> inputs, std::vector<std::string> names) {
  const size_t count = inputs.size();
  if (count == 0) throw Error(Code::kInvalidArgument, "zip", "there are no inputs");
  for (const std::string& name : names) (void)utf8_name(name, "zip");
  if (!names.empty() && names.size() != count) {
    throw Error(Code::kInvalidArgument, "zip",
                std::to_string(names.size()) + " names for " + std::to_string(count) + " inputs");
  }
  if (std::set<std::string>(names.begin(), names.end()).size() != names.size()) {
    throw Error(Code::kInvalidArgument, "zip", "a name comes twice");
  }
  std::string list = names.empty() ? std::to_string(count) : "";
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return make_node({
      .title = "zip(" + list + ")",
      .inputs = std::move(inputs),
      .build = [names](std::vector<Built> built, Builder& builder) -> Built {
        if (any_stream(built)) {
          std::vector<StreamedRef> streams = builder.as_streams(built);
          SpecRef spec = combined_of(streams, names);
          return Built::of(std::make_shared<ZipStream>(std::move(streams), std::move(spec), names));
        }
        return {zipped(indexed_of(built), names)};
      },
  });
}

}  // namespace penstock
