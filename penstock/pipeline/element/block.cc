#include "penstock/pipeline/element/block.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "penstock/base/error.h"
#include "penstock/pipeline/element/chunk.h"

namespace penstock {

namespace {

constexpr uint64_t kLargestBlock = uint64_t{1} << 56;  // far above any memory, far below overflow
constexpr int64_t kMaxSteps = int64_t{1} << 40;        // for leaves whose steps take no bytes

uint64_t aligned(uint64_t bytes) {
  return (bytes + RowLayout::kAlignment - 1) / RowLayout::kAlignment * RowLayout::kAlignment;
}

// Appends `count` * `size` bytes to a layout that ends at `end`. Returns where they begin.
uint64_t take(uint64_t& end, uint64_t count, uint64_t size) {
  uint64_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes) || bytes > kLargestBlock || end > kLargestBlock) {
    throw Error(Code::kInvalidArgument, "BlockLayout", "a block that is too large");
  }
  uint64_t begin = end;
  end += aligned(bytes);
  return begin;
}

Error lost(const Leaf& leaf, const std::string& why) {
  return {Code::kDataLoss, "Block", "'" + leaf.name + "' " + why};
}

uint64_t step_bytes(const Leaf& leaf) {
  return static_cast<uint64_t>(leaf.fixed_values()) * size_of(leaf.dtype);
}

}  // namespace

BlockLayout::BlockLayout(const ElementSpec& spec, uint64_t rows,
                         std::span<const uint64_t> value_bytes) {
  if (rows > kLargestBlock) {
    throw Error(Code::kInvalidArgument, "BlockLayout", "a block that is too large");
  }
  std::vector<Field> fields;
  places_.resize(spec.leaves().size());
  for (size_t i = 0; i < places_.size(); ++i) {
    const Leaf& leaf = spec.leaves()[i];
    if (!leaf.fixed()) continue;
    places_[i].fixed = fields.size();
    fields.push_back(Field::of(leaf.dtype, leaf.shape));
  }
  fixed_ = RowLayout(std::move(fields), rows);
  known_bytes_ = fixed_.bytes();
  for (size_t i = 0; i < places_.size(); ++i) {
    const Leaf& leaf = spec.leaves()[i];
    if (leaf.fixed()) continue;
    places_[i].offsets = take(known_bytes_, rows + 1, sizeof(int64_t));
    if (!leaf.deep()) continue;
    places_[i].dims = take(known_bytes_, rows, leaf.shape.size() * sizeof(int64_t));
  }
  bytes_ = known_bytes_;
  size_t variable = 0;
  for (size_t i = 0; i < places_.size(); ++i) {
    const Leaf& leaf = spec.leaves()[i];
    if (leaf.fixed()) continue;
    uint64_t bytes = variable < value_bytes.size() ? value_bytes[variable] : 0;
    ++variable;
    uint64_t step = step_bytes(leaf);
    if (step == 0 ? bytes != 0 : bytes % step != 0) {
      throw Error(Code::kInvalidArgument, "BlockLayout",
                  std::to_string(bytes) + " bytes are no whole number of '" + leaf.name + "'");
    }
    places_[i].values = take(bytes_, bytes, 1);
  }
}

Block::Block(SpecRef spec, uint64_t rows, std::byte* data, uint64_t bytes,
             std::shared_ptr<void> owner)
    : spec_(std::move(spec)), data_(data), owner_(std::move(owner)), count_(rows) {
  try {
    layout_ = BlockLayout(*spec_, rows);
  } catch (const Error& error) {
    throw Error(Code::kDataLoss, "Block", error.what());
  }
  if (layout_.known_bytes() > bytes) {
    throw Error(Code::kDataLoss, "Block",
                std::to_string(rows) + " elements need " + std::to_string(layout_.known_bytes()) +
                    " bytes at least, and there are " + std::to_string(bytes));
  }
  check_values(bytes);
}

// The offsets give the number of values.
void Block::check_values(uint64_t bytes) {
  std::vector<uint64_t> value_bytes;
  for (size_t i = 0; i < spec_->leaves().size(); ++i) {
    const Leaf& leaf = spec_->leaves()[i];
    if (leaf.fixed()) continue;
    const int64_t* offsets = offsets_of(i);
    if (offsets[0] != 0) throw lost(leaf, "does not begin with its first value");
    for (uint64_t row = 0; row < count_; ++row) {
      if (offsets[row + 1] < offsets[row]) throw lost(leaf, "has offsets that do not ascend");
    }
    uint64_t all;
    if (offsets[count_] > kMaxSteps ||
        __builtin_mul_overflow(static_cast<uint64_t>(offsets[count_]), step_bytes(leaf), &all) ||
        all > bytes) {
      throw lost(leaf, "has more values than there are bytes");
    }
    value_bytes.push_back(all);
    if (!leaf.deep()) continue;
    const auto* dims = reinterpret_cast<const int64_t*>(data_ + layout_.dims(i));
    size_t axes = leaf.shape.size();
    for (uint64_t row = 0; row < count_; ++row) {
      uint64_t product = 1, apart_from_zeros = size_of(leaf.dtype);
      for (size_t axis = 0; axis < axes; ++axis) {
        int64_t length = dims[row * axes + axis];
        bool right = length >= 0 && (leaf.shape[axis] < 0 || leaf.shape[axis] == length);
        auto factor = static_cast<uint64_t>(std::max<int64_t>(length, 1));
        right = right && !__builtin_mul_overflow(apart_from_zeros, factor, &apart_from_zeros);
        product *= static_cast<uint64_t>(length);
        if (!right || apart_from_zeros > kLargestBlock) {
          throw lost(leaf, "has an element of a shape that it cannot have");
        }
      }
      if (product != static_cast<uint64_t>(offsets[row + 1] - offsets[row])) {
        throw lost(leaf, "has an element whose shape and size do not agree");
      }
    }
  }
  layout_ = BlockLayout(*spec_, count_, value_bytes);
  if (layout_.bytes() > bytes) {
    throw Error(Code::kDataLoss, "Block",
                std::to_string(count_) + " elements need " + std::to_string(layout_.bytes()) +
                    " bytes, and there are " + std::to_string(bytes));
  }
}

const int64_t* Block::offsets_of(size_t leaf) const {
  return reinterpret_cast<const int64_t*>(data_ + layout_.offsets(leaf));
}

Tensor Block::column(size_t leaf) const {
  const RowLayout& fixed = layout_.fixed();
  size_t place = layout_.fixed_place(leaf);
  return Tensor::view(spec_->leaves()[leaf].dtype, fixed.column_shape(place, count_),
                      fixed.row(data_, place, first_), owner_);
}

// Steps [begin, end) of a variable leaf's values.
Tensor Block::values_between(size_t leaf, int64_t begin, int64_t end, Shape shape) const {
  const Leaf& of = spec_->leaves()[leaf];
  if (shape.empty()) {
    shape = {end - begin};
    if (!of.deep()) shape.insert(shape.end(), of.shape.begin() + 1, of.shape.end());
  }
  std::byte* at = data_ + layout_.values(leaf) + static_cast<uint64_t>(begin) * step_bytes(of);
  return Tensor::view(of.dtype, std::move(shape), at, owner_);
}

Example Block::batch() const {
  Example batch;
  for (size_t i = 0; i < spec_->leaves().size(); ++i) {
    const Leaf& leaf = spec_->leaves()[i];
    if (leaf.fixed()) {
      batch.set(leaf.name, column(i));
      continue;
    }
    auto rows = static_cast<int64_t>(count_);
    const int64_t* offsets = offsets_of(i) + first_;
    batch.set(leaf.name, values_between(i, offsets[0], offsets[count_], {}));
    Tensor own = Tensor::view(DType::kInt64, {rows + 1}, const_cast<int64_t*>(offsets), owner_);
    if (offsets[0] != 0) {  // for a range of rows, offsets begin at 0 too
      own = own.copy();
      int64_t before = offsets[0];
      for (int64_t& offset : own.as_span<int64_t>()) offset -= before;
    }
    batch.set(leaf.name + "/offsets", std::move(own));
    if (!leaf.deep()) continue;
    auto axes = static_cast<int64_t>(leaf.shape.size());
    auto* dims =
        reinterpret_cast<int64_t*>(data_ + layout_.dims(i)) + first_ * static_cast<uint64_t>(axes);
    batch.set(leaf.name + "/dims", Tensor::view(DType::kInt64, {rows, axes}, dims, owner_));
  }
  return batch;
}

Example Block::row(uint64_t row) const {
  if (row >= count_) {
    throw Error(Code::kInvalidArgument, "Block",
                "row " + std::to_string(row) + " of " + std::to_string(count_));
  }
  Example element;
  for (size_t i = 0; i < spec_->leaves().size(); ++i) {
    const Leaf& leaf = spec_->leaves()[i];
    if (leaf.fixed()) {
      element.set(leaf.name, column(i).row(static_cast<int64_t>(row)));
      continue;
    }
    const int64_t* offsets = offsets_of(i) + first_ + row;
    Shape shape;
    if (leaf.deep()) {
      size_t axes = leaf.shape.size();
      const auto* dims = reinterpret_cast<const int64_t*>(data_ + layout_.dims(i));
      shape.assign(dims + (first_ + row) * axes, dims + (first_ + row + 1) * axes);
    }
    element.set(leaf.name, values_between(i, offsets[0], offsets[1], std::move(shape)));
  }
  return element;
}

void Block::view(uint64_t row, Chunk& out, uint32_t at) const {
  row += first_;
  for (size_t i = 0; i < spec_->leaves().size(); ++i) {
    const Leaf& leaf = spec_->leaves()[i];
    if (leaf.fixed()) {
      out.view(i, at, layout_.fixed().row(data_, layout_.fixed_place(i), row), leaf.shape);
      continue;
    }
    const int64_t* offsets = offsets_of(i) + row;
    const std::byte* values =
        data_ + layout_.values(i) + static_cast<uint64_t>(offsets[0]) * step_bytes(leaf);
    if (leaf.deep()) {
      const size_t axes = leaf.shape.size();
      const auto* dims = reinterpret_cast<const int64_t*>(data_ + layout_.dims(i)) + row * axes;
      out.view(i, at, values, {dims, axes});
    } else {
      Shape shape = leaf.shape;
      shape[0] = offsets[1] - offsets[0];
      out.view(i, at, values, shape);
    }
  }
}

Block Block::rows(uint64_t begin, uint64_t end) const {
  if (begin > end || end > count_) {
    throw Error(Code::kInvalidArgument, "Block",
                "rows " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
                    std::to_string(count_));
  }
  Block part = *this;
  part.first_ = first_ + begin;
  part.count_ = end - begin;
  return part;
}

namespace {

struct ColumnHead {
  uint64_t bytes, rows, spec_bytes;
};

constexpr uint64_t kColumnAlignment = 64;

uint64_t up_to_boundary(uint64_t bytes) {
  return (bytes + kColumnAlignment - 1) / kColumnAlignment * kColumnAlignment;
}

Error no_column(const std::string& why) {
  return {Code::kDataLoss, "ColumnBlock", "a column that is none: " + why};
}

}  // namespace

uint64_t ColumnBlock::bytes_of(const ElementSpec& spec, const BlockLayout& layout) {
  return up_to_boundary(sizeof(ColumnHead) + spec.bytes().size()) + up_to_boundary(layout.bytes());
}

std::byte* ColumnBlock::begin(const ElementSpec& spec, const BlockLayout& layout, std::byte* to) {
  const ColumnHead head{bytes_of(spec, layout), layout.rows(), spec.bytes().size()};
  std::memset(to, 0, head.bytes);
  std::memcpy(to, &head, sizeof(head));
  std::memcpy(to + sizeof(head), spec.bytes().data(), spec.bytes().size());
  return to + up_to_boundary(sizeof(head) + head.spec_bytes);
}

Block ColumnBlock::read(const std::byte* from, uint64_t bytes, std::shared_ptr<void> owner) {
  ColumnHead head{};
  if (bytes < sizeof(head)) throw no_column("it ends too soon");
  std::memcpy(&head, from, sizeof(head));
  if (head.bytes != bytes || head.spec_bytes > bytes - sizeof(head) || head.rows > bytes) {
    throw no_column("its length is another one");
  }
  auto spec = std::make_shared<ElementSpec>(std::span(from + sizeof(head), head.spec_bytes));
  const Leaf* leaf = spec->leaves().size() == 1 ? spec->leaves().data() : nullptr;
  if (leaf == nullptr || leaf->fixed() || leaf->kind == LeafKind::kColumn) {
    throw no_column("it is of " + spec->to_string());
  }
  const uint64_t place = up_to_boundary(sizeof(head) + head.spec_bytes);
  if (place > bytes) throw no_column("it ends too soon");
  const std::byte* block = from + place;
  if (owner == nullptr || reinterpret_cast<uintptr_t>(block) % alignof(int64_t) != 0) {
    std::shared_ptr<std::byte> copy(
        static_cast<std::byte*>(::operator new(bytes - place + 1, std::align_val_t(64))),
        [](std::byte* memory) { ::operator delete(memory, std::align_val_t(64)); });
    std::memcpy(copy.get(), block, bytes - place);
    block = copy.get();
    owner = std::move(copy);
  }
  return {std::move(spec), head.rows, const_cast<std::byte*>(block), bytes - place,
          std::move(owner)};
}

Example expand_columns(Example element, const ElementSpec& spec) {
  const auto is_column = [](const Leaf& leaf) { return leaf.kind == LeafKind::kColumn; };
  if (std::ranges::none_of(spec.leaves(), is_column)) return element;
  Example made;
  for (size_t i = 0; i < spec.leaves().size(); ++i) {
    const auto& [name, tensor] = element[i];
    if (!is_column(spec.leaves()[i])) {
      made.set(name, tensor);
      continue;
    }
    // The tensor owns the rows' memory. A tensor without an owner is kept alive by the caller; then
    // a non-null pointer that owns nothing stands for the owner, so that no copy is made.
    std::shared_ptr<void> owner = tensor.owner();
    if (owner == nullptr) owner = std::shared_ptr<void>(std::shared_ptr<void>(), tensor.data());
    const Block rows =
        ColumnBlock::read(tensor.data(), static_cast<uint64_t>(tensor.shape()[0]), owner);
    for (auto& [column, values] : rows.batch()) made.set(column, values);
  }
  return made;
}

void refuse_columns(const ElementSpec& spec) {
  for (const Leaf& leaf : spec.leaves()) {
    if (leaf.kind != LeafKind::kColumn) continue;
    throw Error(Code::kInvalidArgument, "batch",
                "'" + leaf.name +
                    "' is a batch's rows of different lengths already, and cannot be stacked once "
                    "more: use rebatch, or unbatch before");
  }
}

}  // namespace penstock
