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

// The input of a stream's stage, pulled up to 64 elements at a time and used one by one: fewer
// where they, or what they are made of, are large (Context::chunk_bytes), so that a stage with many
// inputs does not hold 64 times as many. Its state is the input's before those and how many of them
// are used. They lie in memory of its own, for whoever gave the context empties his between two of
// them. One thread.
class StreamInput {
 public:
  // `hidden`: its elements carry a hidden leaf, which is in summary() and not in chunk().
  StreamInput(const Streamed& stage, const Context& context, bool hidden = false)
      : spec_(hidden ? without_hidden_leaf(stage.spec()) : stage.spec()),
        hidden_(hidden),
        open_(context.memory),
        own_(context.over(scratch_)),
        reader_(stage.open(own_)),
        whole_(scratch_),
        chunk_(scratch_) {}

  void begin(uint64_t epoch);
  // Whether there is a next element: row() of chunk(), good until it was used and more() is called
  // again.
  bool more();
  Chunk& chunk() { return chunk_; }
  // Of the next element, which did not fail.
  Summary summary() const { return HiddenLeaf::summary(whole_, used_); }
  // For what is made of chunk(): its memory is emptied when the next one is pulled.
  Context& context() { return own_; }
  uint32_t row() const { return used_; }
  // Elements in chunk() that are not used yet, from row() on.
  uint32_t left() const { return count_ - used_; }
  // Of the chunk's row 0: its number in the epoch, lost ones counted.
  uint64_t ordinal() const { return ordinal_; }
  // Its end was seen, and nothing is left.
  bool over() const { return over_ && used_ == count_; }
  bool failed() const { return (chunk_.alive() >> used_ & 1) == 0; }
  // Of the next element: it has a place, and is not only what was lost behind the last one.
  bool placed() const { return chunk_.failures().empty() || !failed() || !chunk_.left_out(used_); }
  void use(uint32_t elements = 1) { used_ += elements; }
  // Nobody has views of what was used: if all of it was, what workers made of it goes, and if
  // memory is tight, all of it.
  void release();

  // {"input": the input's state, "ordinal": of its next element, "used": elements}, with "failed"
  // where some of those did, and "most", that are pulled at a time, where they are not 64.
  State save() const;
  // Error kInvalidArgument: it is no state of this input. What an element failed with that is gone
  // past again and had not failed then.
  void load(uint64_t epoch, const State& state);
  // The same, of the next element, for whoever goes past it. REQUIRED: it failed.
  [[noreturn]] void raise_failure();

  const SpecRef& spec() const { return spec_; }  // that the stage says; nullptr: not known

 private:
  SpecRef spec_;
  const bool hidden_;
  const StreamMemory::Input open_;
  Scratch scratch_;
  Context own_;
  StageClock::Kind pulls_;
  std::unique_ptr<ElementReader> reader_;
  Chunk whole_, chunk_;  // the first where there is a hidden leaf
  HiddenLeaf leaf_;
  uint32_t failed_before(uint32_t row) const;
  uint32_t in_chunk(uint64_t bytes) const;
  uint32_t so_many();
  uint32_t first_most() const;

  uint32_t most_ = 0;       // elements that were asked for
  uint32_t next_most_ = 0;  // and will be, but for a bound on bytes; 0: none was yet
  uint64_t each_ = 0;       // bytes that an element takes; 0: not known
  uint32_t count_ = 0, used_ = 0;
  uint64_t ordinal_ = 0;
  bool over_ = false;
  bool released_ = true;  // of what next() gave last
  State before_;          // the chunk
};

// Rows of some inputs' chunks, on their way into one. One thread.
class PickedRows {
 public:
  // The input's next element, which is used then. REQUIRED: it is there, and size() < Chunk::kRows.
  void add(StreamInput& input) {
    picked_.emplace_back(&input, input.row());
    input.use();
  }
  // That element is dropped, and used, and only what was lost on the way to it is here.
  void drop(StreamInput& input) {
    input.chunk().leave_losses(input.row()) ? add(input) : input.use();
  }
  uint32_t size() const { return static_cast<uint32_t>(picked_.size()); }
  // Nobody has views of them any more, or the inputs go elsewhere; before one of these ends.
  void forget();
  // They become all rows of `out`, views, until they are forgotten. Returns how many. REQUIRED:
  // they are of one input, whose elements are alike.
  uint32_t give(const SpecRef& spec, Chunk& out);
  // The same, of several inputs: those that are not like the rows before them fail, in `stage`.
  uint32_t give(const SpecRef& spec, Chunk& out, SchemaChecker& schema, std::string_view stage);

 private:
  std::vector<std::pair<StreamInput*, uint32_t>> picked_;
};

}  // namespace penstock
