#include "penstock/pipeline/stream_input.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/indexed_stream.h"

namespace penstock {

void StreamInput::begin(uint64_t epoch) {
  reader_->begin(epoch);
  count_ = used_ = 0;
  ordinal_ = 0;
  over_ = false;
}

bool StreamInput::more() {
  if (used_ < count_) return true;
  if (over_) return false;
  before_ = reader_->save();
  ordinal_ += count_;
  used_ = 0;
  count_ = reader_->next(Chunk::kRows, chunk_);
  over_ = count_ == 0;
  return !over_;
}

State StreamInput::save() const {
  if (used_ < count_) return {{"input", before_}, {"ordinal", ordinal_}, {"used", used_}};
  return {{"input", reader_->save()}, {"ordinal", ordinal_ + count_}, {"used", 0}};
}

void StreamInput::load(uint64_t epoch, const State& state) {
  reader_->load(epoch, member_of(state, "input"));
  const uint64_t used = count_in(state, "used");
  ordinal_ = count_in(state, "ordinal");
  count_ = used_ = 0;
  over_ = false;
  if (used == 0) return;
  if (!more() || used > count_) {
    throw Error(Code::kInvalidArgument, "restore", "the state is beyond its input's end");
  }
  used_ = static_cast<uint32_t>(used);
}

void pass_row(Chunk& in, uint32_t from, Chunk& out, uint32_t to) {
  if ((in.alive() >> from & 1) == 0) {
    for (auto& [row, failure] : in.failures()) {
      if (row == from) return out.fail(to, failure);
    }
    return out.fail(to, {});
  }
  if (!out.settle(in.spec())) {
    throw Error(Code::kInvalidArgument, "element",
                "elements of one stream must be alike: there are " + out.spec()->to_string() +
                    " and " + in.spec()->to_string());
  }
  for (size_t leaf = 0; leaf < in.spec()->leaves().size(); ++leaf) {
    out.view(leaf, to, in.at(leaf, from), in.shape(leaf, from));
  }
}

}  // namespace penstock
