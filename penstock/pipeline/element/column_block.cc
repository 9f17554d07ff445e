#include "penstock/pipeline/element/column_block.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "penstock/base/error.h"

namespace penstock {
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
