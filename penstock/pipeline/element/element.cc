#include "penstock/pipeline/element/element.h"

#include <algorithm>
#include <set>
#include <utility>

#include "penstock/base/byte_reader.h"
#include "penstock/base/error.h"

namespace penstock {

namespace {

struct LeafHead {
  LeafKind kind;
  DType dtype;
  uint16_t axes;
  uint32_t name_length;
};
static_assert(sizeof(LeafHead) == 8);

template <class T>
void put(std::vector<std::byte>& out, const T* values, size_t count) {
  const auto* from = reinterpret_cast<const std::byte*>(values);
  out.insert(out.end(), from, from + count * sizeof(T));
}

std::string shown(const Leaf& leaf) {
  if (leaf.kind == LeafKind::kBytes) return "bytes";
  if (leaf.kind == LeafKind::kText) return "text";
  if (leaf.kind == LeafKind::kColumn) return "rows of different lengths";
  if (leaf.kind == LeafKind::kObject) return "object";
  std::string shape = "(";
  for (size_t i = 0; i < leaf.shape.size(); ++i) {
    if (i > 0) shape += ", ";
    shape += leaf.shape[i] < 0 ? "?" : std::to_string(leaf.shape[i]);
  }
  shape += leaf.shape.size() == 1 ? ",)" : ")";
  std::string ragged = leaf.kind == LeafKind::kRagged ? "ragged " : "";
  return ragged + std::string(name_of(leaf.dtype)) + " " + shape;
}

bool differs(int64_t length) { return length < 0; }

}  // namespace

bool Leaf::fixed() const { return std::none_of(shape.begin(), shape.end(), differs); }

bool Leaf::deep() const {
  return !shape.empty() && std::any_of(shape.begin() + 1, shape.end(), differs);
}

int64_t Leaf::fixed_values() const {
  if (fixed()) return element_count(shape);
  if (deep()) return 1;
  return element_count(Shape(shape.begin() + 1, shape.end()));
}

ElementSpec::ElementSpec(std::vector<Leaf> leaves, std::string nest)
    : leaves_(std::move(leaves)), nest_(std::move(nest)) {
  try {
    check("ElementSpec");
  } catch (const Error& error) {
    throw Error(Code::kInvalidArgument, "ElementSpec",
                std::string(error.what()).substr(error.operation().size() + 2));
  }
  write();
}

ElementSpec::ElementSpec(std::span<const std::byte> bytes) {
  ByteReader in(bytes, Code::kDataLoss, "ElementSpec");
  auto count = in.get<uint32_t>();
  if (count > kMaxLeaves) throw Error(Code::kDataLoss, "ElementSpec", "too many leaves");
  for (uint32_t i = 0; i < count; ++i) {
    auto head = in.get<LeafHead>();
    if (head.axes > kMaxAxes) throw Error(Code::kDataLoss, "ElementSpec", "too many axes");
    Leaf leaf{in.text(head.name_length), head.kind, head.dtype, Shape(head.axes)};
    in.get(leaf.shape.data(), leaf.shape.size());
    if (leaf.kind == LeafKind::kObject) {
      throw Error(Code::kDataLoss, "ElementSpec", "objects of another process");
    }
    leaves_.push_back(std::move(leaf));
  }
  nest_ = in.text(in.left());
  check("ElementSpec");
  bytes_.assign(bytes.begin(), bytes.end());
}

void ElementSpec::check(const char* operation) const {
  auto refuse = [&](const std::string& why) { throw Error(Code::kDataLoss, operation, why); };
  if (leaves_.size() > kMaxLeaves) {
    refuse(std::to_string(leaves_.size()) + " leaves; " + std::to_string(kMaxLeaves) + " at most");
  }
  std::set<std::string_view> names;
  for (const Leaf& leaf : leaves_) {
    std::string named = "'" + leaf.name + "' ";
    if (!names.insert(leaf.name).second) refuse(named + "comes twice");
    if (!is_valid(leaf.dtype)) refuse(named + "has no dtype that there is");
    if (leaf.kind > LeafKind::kObject) refuse(named + "is of no kind that there is");
    if (leaf.shape.size() > kMaxAxes) refuse(named + "has too many axes");
    const bool text = leaf.kind >= LeafKind::kBytes && leaf.kind != LeafKind::kObject;
    if (text && (leaf.dtype != DType::kUint8 || leaf.shape != Shape{-1})) {
      refuse(named + "is a string, and so uint8 (?,)");
    }
    if (leaf.kind == LeafKind::kRagged && leaf.fixed()) {
      refuse(named + "is ragged, but no axis of its shape differs");
    }
    Shape known = leaf.shape;
    for (int64_t& length : known) {
      if (length < -1) refuse(named + "has an axis of length " + std::to_string(length));
      length = std::max<int64_t>(length, 1);
    }
    try {
      (void)element_count(known);
    } catch (const Error&) {
      refuse(named + "has a shape that is too large");
    }
  }
}

void ElementSpec::write() {
  auto count = static_cast<uint32_t>(leaves_.size());
  put(bytes_, &count, 1);
  for (const Leaf& leaf : leaves_) {
    LeafHead head{leaf.kind, leaf.dtype, static_cast<uint16_t>(leaf.shape.size()),
                  static_cast<uint32_t>(leaf.name.size())};
    put(bytes_, &head, 1);
    put(bytes_, leaf.name.data(), leaf.name.size());
    put(bytes_, leaf.shape.data(), leaf.shape.size());
  }
  put(bytes_, nest_.data(), nest_.size());
}

std::optional<size_t> ElementSpec::find(std::string_view name) const {
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (leaves_[i].name == name) return i;
  }
  return std::nullopt;
}

std::optional<ElementSpec> ElementSpec::merged(const ElementSpec& other) const {
  if (leaves_.size() != other.leaves_.size() || nest_ != other.nest_) return std::nullopt;
  std::vector<Leaf> both = leaves_;
  for (size_t i = 0; i < both.size(); ++i) {
    Leaf& leaf = both[i];
    const Leaf& theirs = other.leaves_[i];
    if (leaf.name != theirs.name || leaf.kind != theirs.kind || leaf.dtype != theirs.dtype ||
        leaf.shape.size() != theirs.shape.size()) {
      return std::nullopt;
    }
    for (size_t axis = 0; axis < leaf.shape.size(); ++axis) {
      if (leaf.shape[axis] != theirs.shape[axis]) leaf.shape[axis] = -1;
    }
  }
  return ElementSpec(std::move(both), nest_);
}

uint64_t ElementSpec::fixed_bytes() const {
  uint64_t bytes = 0;
  for (const Leaf& leaf : leaves_) {
    if (leaf.fixed()) bytes += static_cast<uint64_t>(leaf.fixed_values()) * size_of(leaf.dtype);
  }
  return bytes;
}

bool ElementSpec::fixed() const {
  return std::all_of(leaves_.begin(), leaves_.end(), [](const Leaf& leaf) { return leaf.fixed(); });
}

std::string ElementSpec::to_string() const {
  std::string text = "{";
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (leaves_[i].name == kHiddenLeaf) continue;
    if (i > 0) text += ", ";
    text += leaves_[i].name + ": " + shown(leaves_[i]);
  }
  return text + "}";
}

namespace {

void add_string(std::string& nest, const std::string& text) {
  nest += std::to_string(text.size()) + ":" + text;
}

// A single value: its nest says so, or it is one leaf without a name.
bool is_value(const ElementSpec& spec) {
  return spec.leaves().size() == 1 &&
         (spec.nest() == "." || (spec.nest().empty() && spec.leaves()[0].name.empty()));
}

std::string node_of(const ElementSpec& spec) {
  if (is_value(spec)) return ".";
  if (!spec.nest().empty()) return spec.nest();
  std::string nest = "{";
  for (const Leaf& leaf : spec.leaves()) {
    add_string(nest, leaf.name);
    nest += '.';
  }
  return nest + "}";
}

// Position of a leaf's node in the nest. REQUIRED: the nest has more than `leaf` leaves.
size_t place_of_leaf(const std::string& nest, size_t leaf) {
  size_t at = 0;
  for (;; ++at) {
    if (nest.at(at) == '.' && leaf-- == 0) return at;
    if (nest[at] < '0' || nest[at] > '9') continue;
    size_t bytes = 0;  // length of a string, which may contain any characters
    for (; nest.at(at) != ':'; ++at) bytes = bytes * 10 + static_cast<size_t>(nest[at] - '0');
    at += bytes;
  }
}

}  // namespace

SpecRef combined_spec(std::span<const SpecRef> specs, const std::vector<std::string>& names) {
  std::vector<Leaf> leaves;
  std::string nest = names.empty() ? "(" : "{";
  bool flat = !names.empty();
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::string name = names.empty() ? std::to_string(i) : names[i];
    const bool value = is_value(*specs[i]);
    flat &= value;
    for (Leaf leaf : specs[i]->leaves()) {
      leaf.name = value ? name : name + "/" + leaf.name;
      leaves.push_back(std::move(leaf));
    }
    if (!names.empty()) add_string(nest, names[i]);
    nest += node_of(*specs[i]);
  }
  nest += names.empty() ? ")" : "}";
  return std::make_shared<ElementSpec>(std::move(leaves), flat ? std::string() : std::move(nest));
}

SpecRef with_leaf_replaced(const ElementSpec& whole, size_t leaf, const ElementSpec& part) {
  std::vector<Leaf> leaves(whole.leaves().begin(), whole.leaves().end());
  const std::string name = leaves[leaf].name;
  std::string nest = part.nest();
  if (!is_value(whole)) {
    nest = node_of(whole);
    nest.replace(place_of_leaf(nest, leaf), 1, node_of(part));
  }
  leaves.erase(leaves.begin() + static_cast<std::ptrdiff_t>(leaf));
  for (size_t i = 0; i < part.leaves().size(); ++i) {
    Leaf made = part.leaves()[i];
    if (!is_value(whole)) made.name = name + "/" + made.name;
    leaves.insert(leaves.begin() + static_cast<std::ptrdiff_t>(leaf + i), std::move(made));
  }
  return std::make_shared<ElementSpec>(std::move(leaves), std::move(nest));
}

}  // namespace penstock
