#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>

#include "penstock/pipeline/stage.h"

namespace penstock {

// The input of a stream's stage, pulled 64 elements at a time and used one by one. Its state is the
// input's before those 64 and how many of them are used. One thread.
class StreamInput {
 public:
  StreamInput(const Streamed& stage, Context& context)
      : spec_(stage.spec()), reader_(stage.reader(context)), chunk_(context.scratch) {}

  void begin(uint64_t epoch);
  // Whether there is a next element: row() of chunk(), good until it was used and more() is called
  // again.
  bool more();
  Chunk& chunk() { return chunk_; }
  uint32_t row() const { return used_; }
  // Elements in chunk() that are not used yet, from row() on.
  uint32_t left() const { return count_ - used_; }
  // Of the chunk's row 0: its number in the epoch, lost ones counted.
  uint64_t ordinal() const { return ordinal_; }
  bool failed() const { return (chunk_.alive() >> used_ & 1) == 0; }
  void use(uint32_t elements = 1) { used_ += elements; }

  // {"input": the input's state, "ordinal": of its next element, "used": elements}
  State save() const;
  // Error kInvalidArgument: it is no state of this input.
  void load(uint64_t epoch, const State& state);

  const SpecRef& spec() const { return spec_; }  // that the stage says; nullptr: not known

 private:
  SpecRef spec_;
  std::unique_ptr<StreamReader> reader_;
  Chunk chunk_;
  uint32_t count_ = 0, used_ = 0;
  uint64_t ordinal_ = 0;
  bool over_ = false;
  State before_;  // the chunk
};

// Row `from` of `in` becomes row `to` of `out`, which has its spec or is told it: a view, or, if it
// failed, its failure. Error kInvalidArgument: it is not like `out`'s other rows.
void pass_row(Chunk& in, uint32_t from, Chunk& out, uint32_t to);

}  // namespace penstock
