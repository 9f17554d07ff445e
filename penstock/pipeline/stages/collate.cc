#include "penstock/pipeline/stages/collate.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/memory/copy.h"
#include "penstock/pipeline/element/block.h"
#include "penstock/pipeline/stages/schema_checker.h"
#include "penstock/pipeline/stages/stage.h"
#include "penstock/pipeline/stages/stream_chunk.h"

namespace penstock {

namespace {

uint64_t bytes_of(DType dtype, std::span<const int64_t> shape) {
  uint64_t bytes = size_of(dtype);
  for (int64_t length : shape) bytes *= static_cast<uint64_t>(length);
  return bytes;
}

// Copies an array of shape `from` into the leading corner of an array of shape `to`.
void copy_corner(std::byte* out, std::span<const int64_t> to, const std::byte* in,
                 std::span<const int64_t> from, size_t itemsize) {
  if (to.size() <= 1) {
    std::memcpy(out, in, (to.empty() ? 1 : static_cast<size_t>(from[0])) * itemsize);
    return;
  }
  size_t out_step = bytes_of(DType::kUint8, to.subspan(1)) * itemsize;
  size_t in_step = bytes_of(DType::kUint8, from.subspan(1)) * itemsize;
  for (int64_t i = 0; i < from[0]; ++i) {
    copy_corner(out + i * out_step, to.subspan(1), in + i * in_step, from.subspan(1), itemsize);
  }
}

void fill(std::byte* to, uint64_t bytes, std::span<const std::byte> value) {
  if (value.size() == 1) {
    std::memset(to, static_cast<int>(value[0]), bytes);
    return;
  }
  for (uint64_t at = 0; at < bytes; at += value.size()) {
    std::memcpy(to + at, value.data(), value.size());
  }
}

}  // namespace

void Collector::begin(SpecRef spec) {
  given_ = std::move(spec);
  spec_ = nullptr;
  used_ = 0;
  rows_ = 0;
}

Chunk& Collector::add(std::span<const uint64_t> positions) {
  if (used_ == chunks_.size()) {
    chunks_.push_back(std::make_unique<Chunk>(scratch_));
    positions_.emplace_back();
  }
  positions_[used_].assign(positions.begin(), positions.end());
  Chunk& chunk = *chunks_[used_++];
  chunk.reset(given_, static_cast<uint32_t>(positions.size()));
  return chunk;
}

bool Collector::settle() {
  rows_ = 0;
  spec_ = nullptr;
  for (size_t c = 0; c < used_; ++c) {
    rows_ += static_cast<uint64_t>(__builtin_popcountll(chunks_[c]->alive()));
  }
  if (rows_ == 0) return false;
  merge_specs();
  if (lengths_ == Lengths::kPadded) {
    pad_spec();
  } else {
    fix_lengths();
  }
  return true;
}

void* Collector::object() const {
  if (rows_ != 1 || spec_->leaves().empty()) return nullptr;
  if (spec_->leaves()[0].kind != LeafKind::kObject) return nullptr;
  const std::byte* found = nullptr;
  each_row([&](const Chunk& chunk, uint32_t row, uint64_t) { found = chunk.at(0, row); });
  return const_cast<std::byte*>(found);
}

std::string Collector::named(uint64_t position) const {
  return std::to_string(index_of_ == nullptr ? position : index_of_(position));
}

void Collector::merge_specs() {
  uint64_t first = 0;
  for (size_t c = 0; c < used_; ++c) {
    const Chunk& chunk = *chunks_[c];
    if (chunk.alive() == 0 || chunk.spec() == spec_) continue;
    uint64_t position = positions_[c][__builtin_ctzll(chunk.alive())];
    if (spec_ == nullptr) {
      spec_ = chunk.spec();
      first = position;
      continue;
    }
    auto both = spec_->merged(*chunk.spec());
    if (!both) {
      throw Error(Code::kInvalidArgument, "batch",
                  "elements of one batch must be alike: element " + named(first) + " is " +
                      spec_->to_string() + ", element " + named(position) + " is " +
                      chunk.spec()->to_string() + advice_on_lists(*spec_, *chunk.spec()));
    }
    if (*both != *spec_) spec_ = std::make_shared<ElementSpec>(std::move(*both));
  }
}

// Makes variable lengths fixed if they are equal in this batch. Error: lengths differ that must be
// equal.
void Collector::fix_lengths() {
  if (spec_->fixed() || lengths_ == Lengths::kAny) return;
  std::vector<Leaf> leaves(spec_->leaves().begin(), spec_->leaves().end());
  bool changed = false;
  for (size_t i = 0; i < leaves.size(); ++i) {
    Leaf& leaf = leaves[i];
    if (leaf.fixed() || leaf.kind != LeafKind::kDense) continue;
    changed = true;
    if (lengths_ == Lengths::kRagged) {
      if (given_ == nullptr) fix_common_axes(i, leaf);
      if (!leaf.fixed()) leaf.kind = LeafKind::kRagged;
      continue;
    }
    Shape expected;
    uint64_t first = 0;
    bool begun = false;
    each_row([&](const Chunk& chunk, uint32_t row, uint64_t position) {
      std::span<const int64_t> shape = chunk.shape(i, row);
      if (!std::exchange(begun, true)) {
        expected.assign(shape.begin(), shape.end());
        first = position;
      } else if (!std::equal(shape.begin(), shape.end(), expected.begin())) {
        throw Error(Code::kInvalidArgument, "batch",
                    "elements of one batch must be alike: '" + leaf.name + "' of element " +
                        named(first) + " has shape " + to_string(expected) + ", of element " +
                        named(position) + " " + to_string(Shape(shape.begin(), shape.end())) +
                        "; use padded_batch or ragged_batch, or, for windows, "
                        "window(..., drop_last=True)");
      }
    });
    leaf.shape = expected;
  }
  if (changed) spec_ = std::make_shared<ElementSpec>(std::move(leaves), spec_->nest());
}

// Makes an axis fixed if its lengths are equal in this batch, though they may differ in other
// batches.
void Collector::fix_common_axes(size_t of, Leaf& leaf) const {
  bool begun = false;
  each_row([&](const Chunk& chunk, uint32_t row, uint64_t) {
    std::span<const int64_t> shape = chunk.shape(of, row);
    if (!std::exchange(begun, true)) {
      leaf.shape.assign(shape.begin(), shape.end());
      return;
    }
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      if (leaf.shape[axis] != shape[axis]) leaf.shape[axis] = -1;
    }
  });
}

void Collector::pad_spec() {
  refuse_columns(*spec_);
  padded_ = padding_->columns(*spec_);
  std::vector<Leaf> leaves(spec_->leaves().begin(), spec_->leaves().end());
  for (size_t i = 0; i < leaves.size(); ++i) {
    Leaf& leaf = leaves[i];
    const Shape& asked = padded_[i].shape;
    if (leaf.kind == LeafKind::kText) leaf.kind = LeafKind::kBytes;
    if (leaf.kind != LeafKind::kBytes) leaf.kind = LeafKind::kDense;
    Shape longest(leaf.shape.size(), 0);
    each_row([&](const Chunk& chunk, uint32_t row, uint64_t position) {
      std::span<const int64_t> shape = chunk.shape(i, row);
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        longest[axis] = std::max(longest[axis], shape[axis]);
        if (asked[axis] >= 0 && shape[axis] > asked[axis]) {
          throw Error(Code::kInvalidArgument, "padded_batch",
                      "'" + leaf.name + "' of element " + named(position) + " has shape " +
                          to_string(Shape(shape.begin(), shape.end())) +
                          ", which does not fit into " + to_string(asked));
        }
      }
    });
    for (size_t axis = 0; axis < asked.size(); ++axis) {
      leaf.shape[axis] = asked[axis] < 0 ? longest[axis] : asked[axis];
    }
    leaf.kind = LeafKind::kDense;
  }
  spec_ = std::make_shared<ElementSpec>(std::move(leaves), spec_->nest());
}

const std::byte* Collector::fixed_column(size_t leaf) const {
  const Leaf& of = spec_->leaves()[leaf];
  std::byte* to = scratch_.take(bytes_of(of.dtype, of.shape) * rows_);
  write_fixed(leaf, to);
  return to;
}

uint64_t Collector::values_of(size_t leaf) const {
  uint64_t bytes = 0;
  DType dtype = spec_->leaves()[leaf].dtype;
  each_row([&](const Chunk& chunk, uint32_t row, uint64_t) {
    bytes += bytes_of(dtype, chunk.shape(leaf, row));
  });
  return bytes;
}

BlockLayout Collector::layout(uint64_t rows) const {
  std::vector<uint64_t> values;
  for (size_t i = 0; i < spec_->leaves().size(); ++i) {
    if (!spec_->leaves()[i].fixed()) values.push_back(values_of(i));
  }
  return BlockLayout(*spec_, rows, values);
}

void Collector::write(const BlockLayout& layout, std::byte* block, uint64_t first) const {
  for (size_t i = 0; i < spec_->leaves().size(); ++i) {
    if (!spec_->leaves()[i].fixed()) {
      write_variable(i, spec_->leaves()[i], i, layout, block);
    } else if (lengths_ == Lengths::kPadded) {
      write_padded(i, layout.fixed().column(block, layout.fixed_place(i)));
    } else {
      write_fixed(i, layout.fixed().row(block, layout.fixed_place(i), first));
    }
  }
}

// Rows that lie one after the other are copied together.
void Collector::write_fixed(size_t leaf, std::byte* to) const {
  const Leaf& of = spec_->leaves()[leaf];
  const uint64_t bytes = bytes_of(of.dtype, of.shape);
  if (bytes == 0) return;
  const std::byte* from = nullptr;
  uint64_t run = 0;
  const auto copy = [&] {
    if (run == 8) {  // single numbers in random order
      std::memcpy(to, from, 8);
    } else if (run == 4) {
      std::memcpy(to, from, 4);
    } else {
      copy_stream(to, from, run);
    }
    to += run;
  };
  each_row([&](const Chunk& chunk, uint32_t row, uint64_t) {
    const std::byte* next = chunk.at(leaf, row);
    if (next != from + run) {
      if (run > 0) copy();
      from = next;
      run = 0;
    }
    run += bytes;
  });
  if (run > 0) copy();
}

void Collector::write_padded(size_t leaf, std::byte* to) const {
  const Leaf& of = spec_->leaves()[leaf];
  const uint64_t bytes = bytes_of(of.dtype, of.shape);
  if (bytes == 0) return;
  each_row([&](const Chunk& chunk, uint32_t row, uint64_t) {
    std::span<const int64_t> shape = chunk.shape(leaf, row);
    uint64_t own = bytes_of(of.dtype, shape);
    if (own != bytes) fill(to, bytes, padded_[leaf].value);
    if (own != 0) copy_corner(to, of.shape, chunk.at(leaf, row), shape, size_of(of.dtype));
    to += bytes;
  });
}

std::span<const std::byte> Collector::column(size_t leaf) const {
  Leaf as = spec_->leaves()[leaf];
  if (as.fixed()) {
    as.kind = LeafKind::kRagged;
    as.shape[0] = -1;
  }
  const ElementSpec alone({as});
  const uint64_t values = values_of(leaf);
  const BlockLayout layout(alone, rows_, {&values, 1});
  const uint64_t bytes = ColumnBlock::bytes_of(alone, layout);
  std::byte* to = scratch_.take(bytes);
  write_variable(leaf, as, 0, layout, ColumnBlock::begin(alone, layout, to));
  return {to, bytes};
}

// Writes the rows as leaf `place` of the block.
void Collector::write_variable(size_t leaf, const Leaf& of, size_t place, const BlockLayout& layout,
                               std::byte* block) const {
  const uint64_t step = static_cast<uint64_t>(of.fixed_values()) * size_of(of.dtype);
  auto* offsets = reinterpret_cast<int64_t*>(block + layout.offsets(place));
  const bool deep = of.deep();
  auto* dims = deep ? reinterpret_cast<int64_t*>(block + layout.dims(place)) : nullptr;
  std::byte* values = block + layout.values(place);
  uint64_t at = 0, count = 0;
  int64_t steps = 0;
  offsets[0] = 0;
  each_row([&](const Chunk& chunk, uint32_t row, uint64_t) {
    std::span<const int64_t> shape = chunk.shape(leaf, row);
    uint64_t bytes = bytes_of(of.dtype, shape);
    if (bytes != 0) std::memcpy(values + at, chunk.at(leaf, row), bytes);
    at += bytes;
    // A step may take no bytes, so steps are not computed from bytes: the count is the first
    // length. `deep` leaves count single values.
    steps += deep ? static_cast<int64_t>(bytes / step) : shape[0];
    offsets[++count] = steps;
    if (dims != nullptr) dims = std::copy(shape.begin(), shape.end(), dims);
  });
  while (count < layout.rows()) {
    offsets[++count] = steps;
    for (size_t axis = 0; dims != nullptr && axis < of.shape.size(); ++axis) {
      *dims++ = std::max<int64_t>(of.shape[axis], 0);
    }
  }
}

// ---- a batch as an element of further stages ---------------------------------------------------

namespace {

Collector::Lengths lengths_of(const Collated& stage) {
  if (stage.padding() != nullptr) return Collector::Lengths::kPadded;
  return stage.ragged() ? Collector::Lengths::kRagged : Collector::Lengths::kEqual;
}

class CollatedReader : public IndexedReader {
 public:
  CollatedReader(const Collated& stage, Context& context)
      : stage_(stage),
        context_(context),
        input_(*stage.input(), context, "batch"),
        rows_(context.scratch, lengths_of(stage), stage.padding()) {}

  void fetch(const At& at, std::span<const uint64_t> batches, Chunk& out, uint32_t row) override {
    const uint32_t first_row = context_.first_row;
    const bool one_row = context_.one_row;
    for (uint64_t batch : batches) {
      context_.first_row = one_row ? first_row : first_row + row;
      context_.one_row = true;
      make(at, batch, out, row++);
    }
    context_.first_row = first_row;
    context_.one_row = one_row;
  }

 private:
  void make(const At& at, uint64_t batch, Chunk& out, uint32_t row) {
    rows_.begin(stage_.input()->spec());
    input_.begin();
    left_out_.clear();
    uint64_t count = stage_.rows(batch, at.base);
    if (context_.stream_chunk != nullptr)
      count = std::min(count, context_.stream_chunk->rows_from(stage_.element(batch, 0, at.base)));
    for (uint64_t i = 0; i < count; i += Chunk::kRows) {
      positions_.resize(std::min<uint64_t>(Chunk::kRows, count - i));
      for (uint64_t j = 0; j < positions_.size(); ++j) {
        positions_[j] = stage_.element(batch, i + j, at.base);
      }
      Chunk& chunk = rows_.add(positions_);
      input_.fetch(at, positions_, chunk, 0);
      std::ranges::stable_sort(chunk.failures(), {}, [](const auto& of) { return of.first; });
      for (auto& [lost, failure] : chunk.failures()) {
        const bool undecided = failure.decision == Decision::kUndecided;
        if (undecided ? !context_.skip : !failure.settled()) {
          left_out_.clear();
          return out.fail(row, std::move(failure));
        }
        failure.provisional |= undecided;
        failure.skip_if_undecided();
        left_out_.push_back(std::move(failure));
      }
      for (auto& [replaced, failure] : chunk.notes()) out.note(row, std::move(failure));
    }
    try {
      if (!rows_.settle()) {
        // No row is alive: the row carries all failures of its elements.
        out.lose(row, std::exchange(left_out_, {}));
      } else {
        batch_.give(rows_, stage_.input()->spec().get(), stage_.ragged(), out, row);
      }
      for (Failure& lost : left_out_) out.note(row, std::move(lost));
    } catch (const Error& error) {
      if (error.code() != Code::kInvalidArgument) throw;
      out.fail(row, {"batch", batch, std::current_exception()});
    }
    left_out_.clear();
  }

  const Collated& stage_;
  Context& context_;
  CheckedRows input_;
  Collector rows_;
  std::vector<uint64_t> positions_;
  BatchElement batch_{context_.scratch};
  std::vector<Failure> left_out_;  // of the current batch
};

}  // namespace

// The spec is inferred from the elements, because the last batch may be short.
SpecRef Collated::spec() const { return nullptr; }

std::unique_ptr<IndexedReader> Collated::reader(Context& context) const {
  return std::make_unique<CollatedReader>(*this, context);
}

void BatchElement::give(const Collector& rows, const ElementSpec* declared, bool ragged, Chunk& out,
                        uint32_t row) {
  refuse_columns(*rows.spec());
  settle(rows, declared, ragged, out);
  const std::span<const Leaf> leaves = made_->leaves();
  if (made_->fixed()) {  // all leaves are fixed: write them in one pass
    const BlockLayout layout = rows.layout(rows.rows());
    std::byte* block = scratch_.take(layout.bytes());
    rows.write(layout, block);
    for (size_t i = 0; i < leaves.size(); ++i) {
      out.view(i, row, layout.fixed().column(block, layout.fixed_place(i)), leaves[i].shape);
    }
    return;
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i].kind == LeafKind::kColumn) {
      const std::span<const std::byte> column = rows.column(i);
      const auto bytes = static_cast<int64_t>(column.size());
      out.view(i, row, column.data(), {&bytes, 1});
    } else {
      out.view(i, row, rows.fixed_column(i), leaves[i].shape);
    }
  }
}

bool BatchElement::is_column(const ElementSpec& spec, size_t leaf, const ElementSpec* declared,
                             bool ragged) {
  const Leaf& of = spec.leaves()[leaf];
  if (!of.fixed()) return true;
  return ragged && !of.shape.empty() && (declared == nullptr || !declared->leaves()[leaf].fixed());
}

void BatchElement::settle(const Collector& rows, const ElementSpec* declared, bool ragged,
                          Chunk& out) {
  if (made_ == nullptr || made_of_ != rows.spec() || made_rows_ != rows.rows()) {
    std::vector<Leaf> leaves(rows.spec()->leaves().begin(), rows.spec()->leaves().end());
    for (size_t i = 0; i < leaves.size(); ++i) {
      Leaf& leaf = leaves[i];
      if (is_column(*rows.spec(), i, declared, ragged)) {
        leaf = {leaf.name, LeafKind::kColumn, DType::kUint8, {-1}};
      } else {
        leaf.kind = LeafKind::kDense;
        leaf.shape.insert(leaf.shape.begin(), static_cast<int64_t>(rows.rows()));
      }
    }
    made_ = std::make_shared<ElementSpec>(std::move(leaves), rows.spec()->nest());
    made_of_ = rows.spec();
    made_rows_ = rows.rows();
  }
  if (out.settle(made_)) return;
  throw Error(
      Code::kInvalidArgument, "batch",
      "batches of different elements: " + out.spec()->to_string() + " and " + made_->to_string());
}

}  // namespace penstock
