#include "penstock/pipeline/stream_input.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/indexed_stream.h"
#include "penstock/pipeline/restore_error.h"

namespace penstock {

namespace {

// Every element of `part` is one of `whole`.
bool covers(const ElementSpec& whole, const ElementSpec& part) {
  if (whole.leaves().size() != part.leaves().size() || whole.nest() != part.nest()) return false;
  for (size_t i = 0; i < whole.leaves().size(); ++i) {
    const Leaf &a = whole.leaves()[i], &b = part.leaves()[i];
    if (a.name != b.name || a.kind != b.kind || a.dtype != b.dtype ||
        a.shape.size() != b.shape.size()) {
      return false;
    }
    for (size_t axis = 0; axis < a.shape.size(); ++axis) {
      if (a.shape[axis] >= 0 && a.shape[axis] != b.shape[axis]) return false;
    }
  }
  return true;
}

}  // namespace

void StreamInput::begin(uint64_t epoch) {
  reader_->begin(epoch);
  count_ = used_ = 0;
  ordinal_ = 0;
  over_ = false;
}

bool StreamInput::more() {
  if (used_ < count_) return true;
  if (over_) return false;
  own_.check_open();
  before_ = reader_->save();
  ordinal_ += count_;
  used_ = 0;
  scratch_.empty();
  count_ = reader_->next(Chunk::kRows, hidden_ ? whole_ : chunk_);
  if (hidden_ && count_ > 0) leaf_.split(whole_, chunk_);
  over_ = count_ == 0;
  return !over_;
}

State StreamInput::save() const {
  if (used_ < count_) return {{"input", before_}, {"ordinal", ordinal_}, {"used", used_}};
  return {{"input", reader_->save()}, {"ordinal", ordinal_ + count_}, {"used", 0}};
}

void StreamInput::load(uint64_t epoch, const State& state) {
  reader_->load(epoch, member_of(state, "input"));
  uint64_t used = count_in(state, "used");
  if (used > Chunk::kRows) throw refuse_restore("more is used of a chunk than there is in one");
  ordinal_ = count_in(state, "ordinal");
  count_ = used_ = 0;
  over_ = false;
  // They may come in smaller pieces than those that the state was taken of.
  while (used > 0) {
    if (!more()) {
      throw Error(Code::kInvalidArgument, "restore", "the state is beyond its input's end");
    }
    const auto some = static_cast<uint32_t>(std::min<uint64_t>(used, left()));
    use(some);
    used -= some;
  }
}

void settle_alike(const SpecRef& spec, Chunk& out) {
  if (out.settle(spec) || covers(*out.spec(), *spec)) return;
  throw Error(Code::kInvalidArgument, "element",
              "elements of one stream must be alike: there are " + out.spec()->to_string() +
                  " and " + spec->to_string());
}

void pass_row(Chunk& in, uint32_t from, Chunk& out, uint32_t to) {
  for (Failure& lost : in.take_notes(from)) out.note(to, std::move(lost));
  if ((in.alive() >> from & 1) == 0) return out.fail(to, in.take_failure(from));
  settle_alike(in.spec(), out);
  out.come_from(to, in.origin(from));
  for (size_t leaf = 0; leaf < in.spec()->leaves().size(); ++leaf) {
    out.view(leaf, to, in.at(leaf, from), in.shape(leaf, from));
  }
}

uint32_t PickedRows::give(const SpecRef& spec, Chunk& out) {
  const auto count = size();
  out.reset(spec, count);
  try {
    for (uint32_t i = 0; i < count; ++i) pass_row(*picked_[i].first, picked_[i].second, out, i);
  } catch (...) {
    forget();
    throw;
  }
  forget();
  return count;
}

}  // namespace penstock
