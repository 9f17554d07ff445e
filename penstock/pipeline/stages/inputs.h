#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/stages/built.h"
#include "penstock/pipeline/stages/input_rows.h"

namespace penstock {

// Helpers for stages with several inputs.

std::vector<IndexedRef> indexed_of(const std::vector<Built>& inputs);
bool any_costly(std::span<const IndexedRef> inputs);
bool any_python(std::span<const IndexedRef> inputs);
// The decision() of the inputs whose spec is inferred, if they agree; else kUndecided.
Decision common_decision(std::span<const IndexedRef> inputs);
bool any_python(std::span<const StreamedRef> inputs);
bool any_stream(const std::vector<Built>& inputs);

// The spec that covers the elements of all inputs. nullptr: an input's spec is not known. Error
// kInvalidArgument: the specs differ in more than lengths.
SpecRef common_spec(std::span<const IndexedRef> inputs, const std::string& stage);
SpecRef common_spec(std::span<const StreamedRef> inputs, const std::string& stage);

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
