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
  kRagged = 1,  // an array whose length is the element's own, and said to be so
  kBytes = 2,   // one byte string
  kText = 3,    // one UTF-8 string
  kColumn = 4,  // a batch's rows that differ in size, where the batch is one element: ColumnBlock
  kObject = 5,  // an object of this process, by its address: it is handed on as it is, never copied
};

// The name of a leaf that stages add for themselves: nobody else's, and not shown.
inline constexpr std::string_view kHiddenLeaf = "\x01";

struct Leaf {
  std::string name;  // the path in the nest: "image", "meta/id", "0"
  LeafKind kind = LeafKind::kDense;
  DType dtype = DType::kUint8;  // kBytes, kText, kColumn: kUint8
  Shape shape;                  // of one element; -1: differs from element to element. Those: {-1}

  bool fixed() const;            // no axis differs
  bool deep() const;             // an axis after the first differs, so rows carry their shapes
  int64_t fixed_values() const;  // values of one step of the first axis (all of them, if fixed)
  bool operator==(const Leaf&) const = default;
};

// What the elements of a plan are: a nest of leaves. Immutable; any thread. Equal specs have equal
// bytes, which travel as a batch's layout and lie in files:
//
//   u32 leaves, { u8 kind, u8 dtype, u16 axes, u32 length of the name, name, i64 shape[axes] }...,
//   the nest
//
// The nest says how Python puts the leaves together again; to C++ it is opaque.
class ElementSpec {
 public:
  static constexpr size_t kMaxLeaves = 4096;
  static constexpr size_t kMaxAxes = 32;

  // Error kInvalidArgument: names that come twice, a length below -1, a shape that its kind cannot
  // have, too many leaves or axes.
  explicit ElementSpec(std::vector<Leaf> leaves, std::string nest = {});
  // Of bytes(). Error kDataLoss: they are none.
  explicit ElementSpec(std::span<const std::byte> bytes);

  std::span<const Leaf> leaves() const { return leaves_; }
  const std::string& nest() const { return nest_; }
  std::optional<size_t> find(std::string_view name) const;
  std::span<const std::byte> bytes() const { return bytes_; }
  bool fixed() const;             // all leaves are
  uint64_t fixed_bytes() const;   // of an element's leaves that are
  std::string to_string() const;  // "{image: bytes, label: int64 ()}"

  // What elements of both specs are: a length that differs between them is -1. Nothing: they differ
  // in more than lengths.
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

}  // namespace penstock
