#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/pipeline/element/chunk.h"
#include "penstock/pipeline/stages/collate.h"
#include "penstock/pipeline/streams/stream_input.h"

namespace penstock {

// A copy of one element and of the losses noted on it. Memory is reused for the next element. A
// value; one thread.
class HeldRow {
 public:
  void take(Chunk& in, uint32_t row);  // REQUIRED: the row is alive
  // Makes this a row of `out`, as views that are valid until this changes. The first call moves the
  // losses to the row's notes. Error kInvalidArgument: the schema differs from that of the other
  // rows of `out`.
  void give(Chunk& out, uint32_t row);

  // Moves the losses out.
  std::vector<Failure> take_lost() { return std::exchange(lost_, {}); }

  const SpecRef& spec() const { return spec_; }
  uint64_t bytes() const { return bytes_.size(); }

  // {"spec": the spec's bytes, "shapes": [[lengths] per leaf], "data": the data of all leaves},
  // bytes in base64.
  State save() const;
  // Error kInvalidArgument: not such a state; then nothing changes.
  void load(const State& state);

  uint64_t ordinal = 0;

 private:
  size_t leaves() const { return spec_ == nullptr ? 0 : spec_->leaves().size(); }
  std::span<const int64_t> shape(size_t leaf) const;
  void place();  // sets at_ from spec_ and dims_, and allocates

  SpecRef spec_;
  std::vector<std::byte> bytes_;
  std::vector<size_t> at_;     // offset of each leaf
  std::vector<int64_t> dims_;  // of all leaves
  std::vector<Failure> lost_;
  Origin origin_;
};

// Stacks elements that a stream's stage held back into one element: every leaf gets one more axis.
// One thread.
class HeldBatch {
 public:
  // `stage`: the stage's title, for errors and failures. `input`: the elements' spec, or nullptr if
  // it is inferred. `padding`: for lengths kPadded; must outlive this.
  HeldBatch(std::string stage, SpecRef input, Collector::Lengths lengths, const Padding* padding)
      : stage_(std::move(stage)), input_(std::move(input)), rows_(scratch_, lengths, padding) {}

  // Frees the memory of the given rows, which must no longer be in use.
  void empty() { scratch_.empty(); }
  // Stacks `rows` into row `row` of `out`: views, valid until empty(). The rows' losses become
  // notes of the row. A leaf of variable length becomes a column (ColumnBlock). If elements differ
  // where they must be equal, the row is a failure. REQUIRED: rows is not empty.
  void give(std::span<HeldRow* const> rows, Chunk& out, uint32_t row);

 private:
  void stack(std::span<HeldRow* const> rows, Chunk& out, uint32_t row);

  const std::string stage_;
  const SpecRef input_;
  Scratch scratch_;
  Collector rows_;
  BatchElement batch_{scratch_};
  std::vector<uint64_t> positions_;
};

// The input of a stage that holds elements back. Held elements are copies with ordinals; failed
// elements have no ordinal. One thread.
//
// The input's state is noted every `every` elements. The last note before the oldest held element
// and all later notes are kept. A state consists of the first note and the number of elements read
// since. load() reads the held elements again from there.
class HeldBack {
 public:
  // `judge`: called for each next element; may fail() an element that cannot be held.
  HeldBack(const Streamed& input, const Context& context, uint64_t every,
           std::function<void(StreamInput&)> judge = nullptr)
      : input_(input, context), every_(every), judge_(std::move(judge)) {}

  void begin(uint64_t epoch);
  bool more();
  StreamInput& input() { return input_; }
  uint64_t read() const { return read_; }  // elements held so far: the ordinal of the next one
  // Copies and takes the input's next element. REQUIRED: it has not failed.
  std::unique_ptr<HeldRow> hold();
  // Takes the input's next element without holding it; the element uses up its ordinal. REQUIRED:
  // it has not failed.
  void skip_if_undecided();
  // Takes the input's next element, which failed.
  void pass();
  // Stops holding the row; its memory is reused.
  void release(std::unique_ptr<HeldRow> row);

  // {"from": a note's ordinal, "since": elements read after it, "input": its state}. With "failed":
  // how many of those elements failed, if any.
  State save() const;
  // Calls `held` with the elements that were held: those for which `wanted` is true of the ordinal.
  // Errors of StreamInput::load.
  void load(uint64_t epoch, const State& state, const std::function<bool(uint64_t)>& wanted,
            const std::function<void(std::unique_ptr<HeldRow>)>& held);

 private:
  struct Note {
    uint64_t ordinal, consumed;
    State input;
  };
  void note();
  void drop_notes();

  StreamInput input_;
  uint64_t every_;
  std::function<void(StreamInput&)> judge_;
  uint64_t read_ = 0;
  uint64_t consumed_ = 0;  // like read_, with failed elements
  std::deque<Note> notes_;
  uint64_t oldest_ = 0;       // ordinal of held_[0]
  std::deque<uint8_t> held_;  // whether each element from oldest_ on is held
  std::vector<std::unique_ptr<HeldRow>> free_;
};

}  // namespace penstock
