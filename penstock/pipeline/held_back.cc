#include "penstock/pipeline/held_back.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/indexed_stream.h"

namespace penstock {

void HeldRow::take(const Chunk& in, uint32_t row) {
  constexpr size_t kAlignment = 16;
  spec_ = in.spec();
  at_.clear();
  dims_.clear();
  size_t all = 0;
  auto bytes_of = [&](size_t leaf) {
    size_t bytes = size_of(spec_->leaves()[leaf].dtype);
    for (int64_t length : in.shape(leaf, row)) bytes *= static_cast<size_t>(length);
    return bytes;
  };
  for (size_t leaf = 0; leaf < spec_->leaves().size(); ++leaf) {
    at_.push_back(all);
    all += (bytes_of(leaf) + kAlignment - 1) / kAlignment * kAlignment;
  }
  bytes_.resize(all);
  for (size_t leaf = 0; leaf < spec_->leaves().size(); ++leaf) {
    std::span<const int64_t> shape = in.shape(leaf, row);
    dims_.insert(dims_.end(), shape.begin(), shape.end());
    const size_t bytes = bytes_of(leaf);
    if (bytes != 0) std::memcpy(bytes_.data() + at_[leaf], in.at(leaf, row), bytes);
  }
}

void HeldRow::give(Chunk& out, uint32_t row) const {
  settle_alike(spec_, out);
  size_t dim = 0;
  for (size_t leaf = 0; leaf < spec_->leaves().size(); ++leaf) {
    const size_t axes = spec_->leaves()[leaf].shape.size();
    out.view(leaf, row, bytes_.data() + at_[leaf], std::span(dims_).subspan(dim, axes));
    dim += axes;
  }
}

void HeldBack::begin(uint64_t epoch) {
  input_.begin(epoch);
  read_ = consumed_ = oldest_ = 0;
  notes_.clear();
  held_.clear();
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
  return row;
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
  return {{"from", from.ordinal}, {"since", consumed_ - from.consumed}, {"input", from.input}};
}

void HeldBack::load(uint64_t epoch, const State& state, const std::function<bool(uint64_t)>& wanted,
                    const std::function<void(std::unique_ptr<HeldRow>)>& held) {
  begin(epoch);
  const uint64_t since = count_in(state, "since");
  read_ = oldest_ = count_in(state, "from");
  input_.load(epoch, member_of(state, "input"));
  while (consumed_ < since) {
    if (!input_.more()) {
      throw Error(Code::kInvalidArgument, "restore", "the state is beyond its input's end");
    }
    if (input_.failed()) {
      pass();
    } else if (wanted(read_)) {
      held(hold());
    } else {
      note();
      ++read_;
      ++consumed_;
      held_.push_back(0);
      input_.use();
    }
  }
  drop_notes();
}

}  // namespace penstock
