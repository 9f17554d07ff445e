#include "penstock/pipeline/streams/stream_input.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/json.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {

void StreamInput::begin(uint64_t epoch) {
  reader_->begin(epoch);
  count_ = used_ = next_most_ = 0;
  ordinal_ = 0;
  over_ = false;
}

bool StreamInput::more() {
  if (used_ < count_) return true;
  if (over_) return false;
  StageClock::Part part(own_.clock, &pulls_);
  own_.check_open();
  before_ = reader_->save();
  most_ = next_most_ != 0 ? std::min(next_most_, in_chunk(each_)) : first_most();
  ordinal_ += count_;
  used_ = 0;
  scratch_.empty();
  released_ = false;
  count_ = reader_->next(most_, hidden_ ? whole_ : chunk_);
  if (hidden_ && count_ > 0) leaf_.split(whole_, chunk_);
  open_.read();
  over_ = count_ == 0;
  if (over_) {
    release();
  } else {
    next_most_ = rows_to_pull();
  }
  return !over_;
}

// How many elements of this size fit into chunk_bytes().
uint32_t StreamInput::in_chunk(uint64_t bytes) const {
  const uint64_t count = own_.chunk_bytes() / std::max<uint64_t>(bytes, 1);
  return static_cast<uint32_t>(std::clamp<uint64_t>(count, 1, Chunk::kRows));
}

uint32_t StreamInput::first_most() const {
  return spec_ != nullptr && spec_->fixed() ? in_chunk(spec_->fixed_bytes()) : 1;
}

// The number of elements to pull next: as many as fit into chunk_bytes(), but at most twice as many
// as before. The size of an element is that of this chunk's elements, or half of the memory that
// was used to make them if that is larger. Unless memory is short, the result depends on the
// elements only, so that the same elements are always pulled together.
uint32_t StreamInput::rows_to_pull() {
  const Chunk& made = hidden_ ? whole_ : chunk_;
  uint64_t bytes = 0;
  for (uint64_t alive = chunk_.alive(); alive != 0; alive &= alive - 1) {
    const auto row = static_cast<uint32_t>(std::countr_zero(alive));
    for (size_t leaf = 0; leaf < chunk_.spec()->leaves().size(); ++leaf) {
      bytes += chunk_.bytes(leaf, row);
    }
  }
  each_ = std::max(bytes, std::max<uint64_t>(scratch_.used(), made.kept_bytes()) / 2) / count_;
  return std::min(2 * most_, in_chunk(each_));
}

void StreamInput::release() {
  if (used_ < count_ || own_.memory == nullptr) return;
  const bool tight = own_.memory->tight();
  if ((tight || own_.parallel_maps != nullptr) && !std::exchange(released_, true))
    reader_->release();
  if (!tight) return;
  whole_.reset(nullptr, 0);
  chunk_.reset(nullptr, 0);
  scratch_.free_all();
}

uint32_t StreamInput::failed_before(uint32_t row) const {
  const uint64_t before = row == Chunk::kRows ? ~uint64_t{0} : (uint64_t{1} << row) - 1;
  return static_cast<uint32_t>(std::popcount(~chunk_.alive() & before));
}

void StreamInput::raise_failure() { std::rethrow_exception(chunk_.take_failure(used_).error); }

State StreamInput::save() const {
  const bool amid = used_ < count_;
  State input = amid ? State(before_) : reader_->save();
  State state = {{"input", std::move(input)},
                 {"ordinal", amid ? ordinal_ : ordinal_ + count_},
                 {"used", amid ? used_ : 0}};
  if (const uint32_t failed = amid ? failed_before(used_) : 0) state["failed"] = failed;
  const uint32_t next = next_most_ != 0 ? next_most_ : first_most();
  if (const uint32_t most = amid ? most_ : next; most != Chunk::kRows) state["most"] = most;
  return state;
}

void StreamInput::load(uint64_t epoch, const State& state) {
  reader_->load(epoch, member_of(state, "input"));
  uint64_t used = count_in(state, "used");
  if (used > Chunk::kRows) throw refuse_restore("more is used of a chunk than there is in one");
  uint64_t failed_then = state.contains("failed") ? count_in(state, "failed") : 0;
  ordinal_ = count_in(state, "ordinal");
  const uint64_t most = state.contains("most") ? count_in(state, "most") : Chunk::kRows;
  if (most == 0 || most > Chunk::kRows) throw refuse_restore("a chunk is of 1 to 64 elements");
  next_most_ = static_cast<uint32_t>(most);
  if (each_ == 0 && spec_ != nullptr && spec_->fixed()) each_ = spec_->fixed_bytes();
  count_ = used_ = 0;
  over_ = false;
  // Chunks may be smaller now than when the state was saved.
  while (used > 0) {
    if (!more()) throw refuse_restore("the state is beyond its input's end");
    for (; used > 0 && left() > 0; --used) {
      if (failed() && failed_then-- == 0) raise_failure();
      use();
    }
  }
}

void PickedRows::forget() {
  for (const auto& [input, row] : picked_) input->release();
  picked_.clear();
}

uint32_t PickedRows::give(const SpecRef& spec, Chunk& out) {
  const auto count = size();
  out.reset(spec, count);
  for (uint32_t i = 0; i < count; ++i) {
    pass_row(picked_[i].first->chunk(), picked_[i].second, out, i);
  }
  return count;
}

uint32_t PickedRows::give(const SpecRef& spec, Chunk& out, SchemaChecker& schema,
                          std::string_view stage) {
  const auto count = size();
  out.reset(spec, count);
  for (uint32_t i = 0; i < count; ++i) {
    const auto& [input, row] = picked_[i];
    schema.pass(input->chunk(), row, out, i, input->ordinal() + row, stage);
  }
  return count;
}

}  // namespace penstock
