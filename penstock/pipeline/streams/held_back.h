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

// The input of a stage that holds elements back for longer than they come in: copies of them, which
// have ordinals (those that failed have none). Every `every` elements the input's state is noted,
// and notes older than the oldest element held are dropped. So the state is the note before that
// one and how far the input was read, and what is held is read again from there. One thread.
class HeldBack {
 public:
  // `judge`: fails a next element that cannot be held; it is asked whenever one is looked at.
  HeldBack(const Streamed& input, const Context& context, uint64_t every,
           std::function<void(StreamInput&)> judge = nullptr)
      : input_(input, context), every_(every), judge_(std::move(judge)) {}

  void begin(uint64_t epoch);
  bool more();
  StreamInput& input() { return input_; }
  uint64_t read() const { return read_; }  // elements that were held so far: the next one's ordinal
  // The input's next element. REQUIRED: it has not failed.
  std::unique_ptr<HeldRow> hold();
  // Past the input's next element, which has its ordinal and is not held. REQUIRED: it has not
  // failed.
  void leave_out();
  // Past the input's next element, which failed.
  void pass();
  // It is no longer held, and its memory good for another one.
  void release(std::unique_ptr<HeldRow> row);

  // {"from": a note's ordinal, "since": elements read from there on, "input": its state}, with
  // "failed" where some of those did.
  State save() const;
  // `held` gets the elements that were held, of those for which `wanted` says true of the ordinal.
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
  uint64_t consumed_ = 0;  // the same with those that failed
  std::deque<Note> notes_;
  uint64_t oldest_ = 0;       // what held_[0] is about
  std::deque<uint8_t> held_;  // whether it is, from the oldest on
  std::vector<std::unique_ptr<HeldRow>> free_;
};

}  // namespace penstock
