#include "penstock/pipeline/streams/held_back.h"

#include <algorithm>
#include <utility>

#include "penstock/base/json.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {

void HeldBack::begin(uint64_t epoch) {
  input_.begin(epoch);
  read_ = consumed_ = oldest_ = 0;
  notes_.clear();
  held_.clear();
}

bool HeldBack::more() {
  if (!input_.more()) return false;
  if (judge_ != nullptr && !input_.failed()) judge_(input_);
  return true;
}

void HeldBack::note() {
  if (notes_.empty() || read_ - notes_.back().ordinal >= every_) {
    notes_.push_back({read_, consumed_, input_.save()});
  }
}

std::unique_ptr<HeldRow> HeldBack::hold() {
  note();
  std::unique_ptr<HeldRow> row;
  if (free_.empty()) {
    row = std::make_unique<HeldRow>();
  } else {
    row = std::move(free_.back());
    free_.pop_back();
  }
  row->take(input_.chunk(), input_.row());
  row->ordinal = read_++;
  held_.push_back(1);
  ++consumed_;
  input_.use();
  input_.release();
  return row;
}

void HeldBack::skip_if_undecided() {
  if (held_.empty()) {  // no state will read it again
    ++oldest_;
  } else {
    note();
    held_.push_back(0);
  }
  ++read_;
  ++consumed_;
  input_.use();
}

void HeldBack::pass() {
  ++consumed_;
  input_.use();
}

void HeldBack::release(std::unique_ptr<HeldRow> row) {
  held_[row->ordinal - oldest_] = 0;
  free_.push_back(std::move(row));
  drop_notes();
}

void HeldBack::drop_notes() {
  while (!held_.empty() && held_.front() == 0) {
    held_.pop_front();
    ++oldest_;
  }
  while (notes_.size() > 1 && notes_[1].ordinal <= oldest_) notes_.pop_front();
  if (held_.empty()) notes_.clear();
}

State HeldBack::save() const {
  if (notes_.empty()) return {{"from", read_}, {"since", 0}, {"input", input_.save()}};
  const Note& from = notes_.front();
  const uint64_t since = consumed_ - from.consumed;
  State state = {{"from", from.ordinal}, {"since", since}, {"input", from.input}};
  if (since != read_ - from.ordinal) state["failed"] = since - (read_ - from.ordinal);
  return state;
}

void HeldBack::load(uint64_t epoch, const State& state, const std::function<bool(uint64_t)>& wanted,
                    const std::function<void(std::unique_ptr<HeldRow>)>& held) {
  begin(epoch);
  const uint64_t since = count_in(state, "since");
  uint64_t failed_then = state.contains("failed") ? count_in(state, "failed") : 0;
  read_ = oldest_ = count_in(state, "from");
  input_.load(epoch, member_of(state, "input"));
  while (consumed_ < since) {
    if (!more()) throw refuse_restore("the state is beyond its input's end");
    if (input_.failed()) {
      if (failed_then-- == 0) input_.raise_failure();
      pass();
    } else if (wanted(read_)) {
      held(hold());
    } else {
      skip_if_undecided();
    }
  }
  drop_notes();
}

}  // namespace penstock
