#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "penstock/pipeline/streams/held_row.h"
#include "penstock/pipeline/streams/stream_input.h"

namespace penstock {

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
