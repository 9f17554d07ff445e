#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/pipeline/stages/stage.h"

namespace penstock {

// Helpers for stages with several inputs.

std::vector<IndexedRef> indexed_of(const std::vector<Built>& inputs);
bool any_stream(const std::vector<Built>& inputs);
// The decision() of the inputs whose spec is inferred, if they agree; else kUndecided.
Decision common_decision(std::span<const IndexedRef> inputs);

// The spec that covers the elements of all inputs. nullptr: an input's spec is not known. Error
// kInvalidArgument: the specs differ in more than lengths.
template <class Ref>  // IndexedRef or StreamedRef
SpecRef common_spec(const std::vector<Ref>& inputs, const std::string& stage);
// The number of elements of all inputs; nothing: an input's is not known.
std::optional<uint64_t> total_length(std::span<const StreamedRef> inputs);

// Bases of stages with several inputs. `spec`: of the stage's elements; nullptr: inferred. With
// `stage`, the stage's name, it is common_spec() of the inputs.
class IndexedInputs : public Indexed {
 public:
  IndexedInputs(std::vector<IndexedRef> inputs, SpecRef spec)
      : inputs_(std::move(inputs)), spec_(std::move(spec)) {}
  IndexedInputs(std::vector<IndexedRef> inputs, const char* stage)
      : inputs_(std::move(inputs)), spec_(common_spec(inputs_, stage)) {}

  const std::vector<IndexedRef>& inputs() const { return inputs_; }
  SpecRef spec() const override { return spec_; }
  bool costly() const override {
    return std::ranges::any_of(inputs_, [](const auto& input) { return input->costly(); });
  }
  bool python() const override {
    return std::ranges::any_of(inputs_, [](const auto& input) { return input->python(); });
  }
  Decision decision() const override { return common_decision(inputs_); }

 private:
  const std::vector<IndexedRef> inputs_;
  const SpecRef spec_;
};

class StreamInputs : public Streamed {
 public:
  StreamInputs(std::vector<StreamedRef> inputs, SpecRef spec)
      : inputs_(std::move(inputs)), spec_(std::move(spec)) {}
  StreamInputs(std::vector<StreamedRef> inputs, const char* stage)
      : inputs_(std::move(inputs)), spec_(common_spec(inputs_, stage)) {}

  const std::vector<StreamedRef>& inputs() const { return inputs_; }
  SpecRef spec() const override { return spec_; }
  bool python() const override {
    return std::ranges::any_of(inputs_, [](const auto& input) { return input->python(); });
  }

 private:
  const std::vector<StreamedRef> inputs_;
  const SpecRef spec_;
};

// The elements of one input on their way into the chunk of a stage that has several inputs or adds
// leaves. They are made in a chunk of their own; its leaves become leaves first, first + 1, ... of
// the stage's chunk. The input writes straight into columns that are bound there; all other columns
// are passed on as views. One thread; `scratch` must outlive this.
class InputRows {
 public:
  explicit InputRows(Scratch& scratch) : rows_(scratch) {}

  // Makes elements of `reader`, whose stage has `spec`, as rows row, row + 1, ... of this chunk,
  // for the same rows of `out`. Rows that fail here fail in `out`, too.
  void fetch(IndexedReader& reader, const SpecRef& spec, const At& at,
             std::span<const uint64_t> positions, Chunk& out, uint32_t row, size_t first = 0);
  // Like fetch(), but failures are not passed to `out`.
  Chunk& make(IndexedReader& reader, const SpecRef& spec, const At& at,
              std::span<const uint64_t> positions, Chunk& out, uint32_t row, size_t first = 0);
  // The spec of the fetched rows; nullptr: none could be made.
  const SpecRef& spec() const { return rows_.spec(); }
  // Passes the rows on to `out`. If the spec of `out` is not known, call out.settle() first.
  void forward(Chunk& out, size_t first = 0);

 private:
  Chunk rows_;
  uint32_t row_ = 0;
};

// The readers of several inputs, each of which makes some rows of a chunk. A reader is opened at
// its first use. One thread; `inputs` and `context` must outlive this.
class InputReaders {
 public:
  InputReaders(std::span<const IndexedRef> inputs, std::string stage, Context& context)
      : inputs_(inputs),
        stage_(std::move(stage)),
        context_(context),
        readers_(inputs.size()),
        rows_(context.scratch) {}

  // As IndexedReader::fetch of one input. An element whose schema differs from the chunk's fails.
  void fetch(size_t input, const At& at, std::span<const uint64_t> positions, Chunk& out,
             uint32_t row);

 private:
  struct Reader {
    std::unique_ptr<IndexedReader> reader;
    SpecRef spec;
    SpecRef whole, part;  // the last specs found to agree: the chunk's and the input's
  };
  bool agree(Reader& reader, Chunk& out);

  std::span<const IndexedRef> inputs_;
  std::string stage_;
  Context& context_;
  std::vector<Reader> readers_;
  InputRows rows_;
};

}  // namespace penstock
