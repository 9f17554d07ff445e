#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/stages/stage.h"
#include "penstock/pipeline/stages/stage_clock.h"
#include "penstock/pipeline/streams/hidden_leaf.h"

namespace penstock {

// The input of a stream's stage. It pulls up to 64 elements at a time and hands them out one by
// one. It pulls fewer elements if these or their inputs are large (Context::chunk_bytes), so that a
// stage with many inputs does not hold 64 large elements of each. Its state is the input's state
// before the pulled elements, and how many of them were used. The elements lie in scratch memory of
// its own, because the owner of `context` empties the context's scratch between elements. One
// thread.
class StreamInput {
 public:
  // `hidden`: the elements have a hidden leaf; summary() returns it, and chunk() omits it.
  StreamInput(const Streamed& stage, const Context& context, bool hidden = false)
      : spec_(hidden ? without_hidden_leaf(stage.spec()) : stage.spec()),
        hidden_(hidden),
        open_(context.memory),
        own_(context.over(scratch_)),
        reader_(stage.open(own_)),
        whole_(scratch_),
        chunk_(scratch_) {}

  void begin(uint64_t epoch);
  // Whether there is a next element. It is row() of chunk(), valid until it was used and more() is
  // called again.
  bool more();
  Chunk& chunk() { return chunk_; }
  // The hidden leaf of the next element. REQUIRED: the element has not failed.
  Summary summary() const { return HiddenLeaf::summary(whole_, used_); }
  // For results that are made of chunk(). Its scratch is emptied when the next chunk is pulled.
  Context& context() { return own_; }
  uint32_t row() const { return used_; }
  // Unused elements of chunk(), from row() on.
  uint32_t left() const { return count_ - used_; }
  // The number of the chunk's row 0 in the epoch, counting failed elements.
  uint64_t ordinal() const { return ordinal_; }
  // The input ended and all its elements were used.
  bool over() const { return over_ && used_ == count_; }
  bool failed() const { return (chunk_.alive() >> used_ & 1) == 0; }
  // Whether the next element is a row of the stream. False: it only carries losses after the last
  // row.
  bool placed() const { return chunk_.failures().empty() || !failed() || !chunk_.left_out(used_); }
  void use(uint32_t elements = 1) { used_ += elements; }
  // Call it when there are no views of used elements. If all elements of the chunk were used,
  // releases results of workers, and if memory is tight, all memory.
  void release();

  // {"input": the input's state, "ordinal": that of its next element, "used": elements used since}.
  // With "failed": how many of those failed, if any; with "most": elements pulled at a time, if not
  // 64.
  State save() const;
  // Error kInvalidArgument: not a state of this input. load() reads the used elements again; if one
  // fails now that had not failed then, its exception is thrown.
  void load(uint64_t epoch, const State& state);
  // Throws the exception of the next element, for callers of load() that pass over it. REQUIRED: it
  // failed.
  [[noreturn]] void raise_failure();

  const SpecRef& spec() const { return spec_; }  // spec of the stage; nullptr: unknown

 private:
  SpecRef spec_;
  const bool hidden_;
  StreamMemory::Input open_;
  Scratch scratch_;
  Context own_;
  StageClock::Kind pulls_;
  std::unique_ptr<ElementReader> reader_;
  Chunk whole_, chunk_;  // whole_: only used with a hidden leaf
  HiddenLeaf leaf_;
  uint32_t failed_before(uint32_t row) const;
  uint32_t in_chunk(uint64_t bytes) const;
  uint32_t rows_to_pull();
  uint32_t first_most() const;

  uint32_t most_ = 0;       // elements asked for in the last pull
  uint32_t next_most_ = 0;  // elements of the next pull before the bound on bytes; 0: no pull yet
  uint64_t each_ = 0;       // bytes per element; 0: unknown
  uint32_t count_ = 0, used_ = 0;
  uint64_t ordinal_ = 0;
  bool over_ = false;
  bool released_ = true;  // release() was called for the last next()
  State before_;          // state of the input before the chunk
};

// Rows of some inputs' chunks that are to become one chunk. One thread.
class PickedRows {
 public:
  // Adds the input's next element and uses it. REQUIRED: there is one, and size() < Chunk::kRows.
  void add(StreamInput& input) {
    picked_.emplace_back(&input, input.row());
    input.use();
  }
  // Uses the input's next element without adding it. Only its notes are added, as a settled
  // failure.
  void drop(StreamInput& input) { input.chunk().drop_row(input.row()) ? add(input) : input.use(); }
  uint32_t size() const { return static_cast<uint32_t>(picked_.size()); }
  // Call it when there are no views of the rows, before an input is moved or destroyed.
  void forget();
  // Makes the rows all rows of `out`, as views that are valid until forget(). Returns their number.
  // REQUIRED: they come from one input, with one schema.
  uint32_t give(const SpecRef& spec, Chunk& out);
  // The same for several inputs. Rows whose schema differs from the rows before them fail in
  // `stage`.
  uint32_t give(const SpecRef& spec, Chunk& out, SchemaChecker& schema, std::string_view stage);

 private:
  std::vector<std::pair<StreamInput*, uint32_t>> picked_;
};

}  // namespace penstock
