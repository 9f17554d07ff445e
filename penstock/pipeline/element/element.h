#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/memory/dtype.h"
#include "penstock/memory/tensor.h"

namespace penstock {

enum class LeafKind : uint8_t {
  kDense = 0,   // an array or number
  kRagged = 1,  // an array that is declared to have a length of its own in each element
  kBytes = 2,   // one byte string
  kText = 3,    // one UTF-8 string
  kColumn = 4,  // rows of a batch that differ in size, as one leaf of an element: ColumnBlock
  kObject = 5,  // the address of an object in this process; stages pass it on and never copy it
};

// Name of the leaf that stages add for their own use. It is reserved, and never shown to users.
inline constexpr std::string_view kHiddenLeaf = "\x01";

struct Leaf {
  std::string name;  // the path in the nest: "image", "meta/id", "0"
  LeafKind kind = LeafKind::kDense;
  DType dtype = DType::kUint8;  // kBytes, kText, kColumn: kUint8
  Shape shape;  // of one element; -1: the length varies. kBytes, kText, kColumn: {-1}

  bool fixed() const;            // no axis varies
  bool deep() const;             // an axis after the first varies, so each row carries its shape
  int64_t fixed_values() const;  // values in one step of the first axis (in all, if fixed)
  bool operator==(const Leaf&) const = default;
};

// The schema of a plan's elements: a nest of leaves. Immutable; any thread. Equal specs have equal
// bytes. These are sent as a batch's layout and stored in files:
//
//   u32 leaves
//   per leaf: u8 kind, u8 dtype, u16 axes, u32 length of the name, the name, i64 shape[axes]
//   the nest
//
// Python rebuilds the nested structure from the nest. It is opaque to C++.
class ElementSpec {
 public:
  static constexpr size_t kMaxLeaves = 4096;
  static constexpr size_t kMaxAxes = 32;

  // Error kInvalidArgument: duplicate names, a length below -1, a shape that the kind does not
  // allow, too many leaves or axes.
  explicit ElementSpec(std::vector<Leaf> leaves, std::string nest = {});
  // Parses the result of bytes(). Error kDataLoss: `bytes` are not a spec.
  explicit ElementSpec(std::span<const std::byte> bytes);

  std::span<const Leaf> leaves() const { return leaves_; }
  const std::string& nest() const { return nest_; }
  std::optional<size_t> find(std::string_view name) const;
  std::span<const std::byte> bytes() const { return bytes_; }
  bool fixed() const;             // all leaves are fixed
  uint64_t fixed_bytes() const;   // bytes of an element's fixed leaves
  std::string to_string() const;  // "{image: bytes, label: int64 ()}"

  // The spec that covers elements of both specs: lengths that differ become -1. Nothing: the specs
  // differ in more than lengths.
  std::optional<ElementSpec> merged(const ElementSpec& other) const;

  bool operator==(const ElementSpec& other) const { return bytes_ == other.bytes_; }

 private:
  void check(const char* operation) const;
  void write();

  std::vector<Leaf> leaves_;
  std::string nest_;
  std::vector<std::byte> bytes_;
};

using SpecRef = std::shared_ptr<const ElementSpec>;

// The spec of several elements combined: a dict keyed by `names`, or a tuple with the keys "0",
// "1", ... if there are no names. Leaf names get the prefix "name/"; the leaf of a single value is
// called `name`. Error kInvalidArgument: two leaves would get the same name.
//
// The grammar of a nest:
//
//   nest   := ""                          a dict of the leaves by their names
//           | node
//   node   := '.'                         the next leaf
//           | '(' node* ')'               a tuple
//           | '{' (string node)* '}'      a dict, its keys in this order
//           | ...                         node types of Python, kept unchanged
//   string := bytes in decimal, ':', UTF-8
SpecRef combined_spec(std::span<const SpecRef> specs, const std::vector<std::string>& names);

// The spec of `whole` after one leaf is replaced by an element of `part`. The leaves of `part` get
// the prefix "name/", with the replaced leaf's name. If `whole` is a single value, the result is
// `part`. Error kInvalidArgument: two leaves would get the same name.
SpecRef with_leaf_replaced(const ElementSpec& whole, size_t leaf, const ElementSpec& part);

}  // namespace penstock
