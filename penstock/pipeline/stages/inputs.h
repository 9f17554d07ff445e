#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/pipeline/stages/built.h"
#include "penstock/pipeline/stages/input_rows.h"

namespace penstock {

// What stages share that take their elements from one of several inputs, or from all of them.

std::vector<IndexedRef> indexed_of(const std::vector<Built>& inputs);
bool any_costly(std::span<const IndexedRef> inputs);
bool any_python(std::span<const IndexedRef> inputs);
// Of those inputs of which only elements tell, if it is the same.
Decision common_decision(std::span<const IndexedRef> inputs);
bool any_python(std::span<const StreamedRef> inputs);
bool any_stream(const std::vector<Built>& inputs);

// What elements of all inputs are. nullptr: that of one of them is not known. Error
// kInvalidArgument: they differ in more than lengths.
SpecRef common_spec(std::span<const IndexedRef> inputs, const std::string& stage);
SpecRef common_spec(std::span<const StreamedRef> inputs, const std::string& stage);

// Readers of inputs that stand side by side, each of which makes some rows of a chunk. They are
// opened when they are first asked for. One thread; `inputs` and `context` outlive it.
class InputReaders {
 public:
  InputReaders(std::span<const IndexedRef> inputs, std::string stage, Context& context)
      : inputs_(inputs),
        stage_(std::move(stage)),
        context_(context),
        readers_(inputs.size()),
        rows_(context.scratch) {}

  // As IndexedReader::fetch, of one of them. An element that is not like the chunk's others fails.
  void fetch(size_t input, const At& at, std::span<const uint64_t> positions, Chunk& out,
             uint32_t row);

 private:
  struct Reader {
    std::unique_ptr<IndexedReader> reader;
    SpecRef spec;
    SpecRef whole, part;  // found to agree: what the chunk's elements are, and the input's
  };
  bool agree(Reader& reader, Chunk& out);

  std::span<const IndexedRef> inputs_;
  std::string stage_;
  Context& context_;
  std::vector<Reader> readers_;
  InputRows rows_;
};

}  // namespace penstock
