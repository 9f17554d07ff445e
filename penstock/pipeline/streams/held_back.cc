#include "penstock/pipeline/streams/held_back.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/base/json.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/streams/streams.h"

namespace penstock {

namespace {

size_t bytes_of(const Leaf& leaf, std::span<const int64_t> shape) {
  size_t bytes = size_of(leaf.dtype);
  for (int64_t length : shape) bytes *= static_cast<size_t>(length);
  return bytes;
}

}  // namespace

std::span<const int64_t> HeldRow::shape(size_t leaf) const {
  size_t first = 0;
  for (size_t i = 0; i < leaf; ++i) first += spec_->leaves()[i].shape.size();
  return std::span(dims_).subspan(first, spec_->leaves()[leaf].shape.size());
}

void HeldRow::place() {
  constexpr size_t kAlignment = 16;
  at_.clear();
  size_t all = 0, dim = 0;
  for (const Leaf& leaf : spec_->leaves()) {
    at_.push_back(all);
    const size_t bytes = bytes_of(leaf, std::span(dims_).subspan(dim, leaf.shape.size()));
    all += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    dim += leaf.shape.size();
  }
  bytes_.resize(all);
}

void HeldRow::take(Chunk& in, uint32_t row) {
  lost_ = in.take_notes(row);
  origin_ = in.origin(row);
  spec_ = in.spec();
  dims_.clear();
  for (size_t leaf = 0; leaf < leaves(); ++leaf) {
    std::span<const int64_t> own = in.shape(leaf, row);
    dims_.insert(dims_.end(), own.begin(), own.end());
  }
  place();
  for (size_t leaf = 0; leaf < leaves(); ++leaf) {
    const size_t bytes = bytes_of(spec_->leaves()[leaf], in.shape(leaf, row));
    if (bytes != 0) std::memcpy(bytes_.data() + at_[leaf], in.at(leaf, row), bytes);
  }
}

void HeldRow::give(Chunk& out, uint32_t row) {
  settle_schema(spec_, out);
  for (Failure& lost : lost_) out.note(row, std::move(lost));
  lost_.clear();
  out.set_origin(row, origin_);
  size_t dim = 0;
  for (size_t leaf = 0; leaf < leaves(); ++leaf) {
    const size_t axes = spec_->leaves()[leaf].shape.size();
    out.view(leaf, row, bytes_.data() + at_[leaf], std::span(dims_).subspan(dim, axes));
    dim += axes;
  }
}

State HeldRow::save() const {
  State shapes = State::array();
  std::vector<std::byte> data;
  for (size_t leaf = 0; leaf < leaves(); ++leaf) {
    std::span<const int64_t> own = shape(leaf);
    shapes.push_back(std::vector<int64_t>(own.begin(), own.end()));
    const std::byte* first = bytes_.data() + at_[leaf];
    data.insert(data.end(), first, first + bytes_of(spec_->leaves()[leaf], own));
  }
  return {{"spec", to_base64(spec_->bytes())},
          {"shapes", std::move(shapes)},
          {"data", to_base64(data)}};
}

void HeldRow::load(const State& state) {
  HeldRow loaded;
  try {
    loaded.spec_ = std::make_shared<ElementSpec>(
        std::span<const std::byte>(from_base64(member_of(state, "spec").get<std::string>())));
    const auto shapes = member_of(state, "shapes").get<std::vector<std::vector<int64_t>>>();
    const std::vector<std::byte> data = from_base64(member_of(state, "data").get<std::string>());
    if (shapes.size() != loaded.leaves())
      throw refuse_restore("an element has another number of leaves");
    size_t all = 0;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Leaf& leaf = loaded.spec_->leaves()[i];
      if (shapes[i].size() != leaf.shape.size())
        throw refuse_restore("an element has another shape");
      size_t bytes = size_of(leaf.dtype);
      for (size_t axis = 0; axis < shapes[i].size(); ++axis) {
        const int64_t length = shapes[i][axis];
        if (length < 0 || (leaf.shape[axis] >= 0 && leaf.shape[axis] != length) ||
            __builtin_mul_overflow(bytes, static_cast<size_t>(length), &bytes)) {
          throw refuse_restore("an element has a shape that cannot be");
        }
        loaded.dims_.push_back(length);
      }
      if (bytes > data.size() - all) throw refuse_restore("an element's data has another length");
      all += bytes;
    }
    if (all != data.size()) throw refuse_restore("an element's data has another length");
    loaded.place();
    const std::byte* from = data.data();
    for (size_t i = 0; i < shapes.size(); ++i) {
      const size_t bytes = bytes_of(loaded.spec_->leaves()[i], shapes[i]);
      if (bytes != 0) std::memcpy(loaded.bytes_.data() + loaded.at_[i], from, bytes);
      from += bytes;
    }
  } catch (const State::exception&) {
    throw refuse_restore("an element is not as it was saved");
  } catch (const Error& error) {
    if (error.code() == Code::kInvalidArgument && error.operation() == "restore") throw;
    throw refuse_restore("an element is not as it was saved");
  }
  loaded.ordinal = ordinal;
  *this = std::move(loaded);
}

void HeldBatch::give(std::span<HeldRow* const> rows, Chunk& out, uint32_t row) {
  for (HeldRow* held : rows) {
    for (Failure& lost : held->take_lost()) out.note(row, std::move(lost));
  }
  try {
    stack(rows, out, row);
  } catch (const Error& error) {
    if (error.code() != Code::kInvalidArgument) throw;
    out.fail(row, {stage_, rows.front()->ordinal, std::current_exception()});
  }
}

void HeldBatch::stack(std::span<HeldRow* const> rows, Chunk& out, uint32_t row) {
  rows_.begin(input_);
  while (!rows.empty()) {
    const std::span<HeldRow* const> some = rows.first(std::min<size_t>(Chunk::kRows, rows.size()));
    positions_.clear();
    for (const HeldRow* held : some) positions_.push_back(held->ordinal);
    Chunk& chunk = rows_.add(positions_);
    for (size_t i = 0; i < some.size(); ++i) some[i]->give(chunk, static_cast<uint32_t>(i));
    rows = rows.subspan(some.size());
  }
  (void)rows_.settle();
  batch_.give(rows_, input_.get(), false, out, row);
}

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
