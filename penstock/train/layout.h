#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "penstock/memory/tensor.h"

namespace penstock::train {

// A named array of weights, as the user describes it.
struct BlockSpec {
  std::string name;
  Shape shape;  // () is one float
};

// A named array with its place in a slab.
struct Block {
  std::string name;
  Shape shape;
  size_t offset = 0;  // offset in floats
  size_t size = 0;    // in floats
};

// Where the blocks of a slab lie: one after the other in the order named, each at a multiple of
// kAlign floats (64 bytes). The gaps between them are zero and stay zero, so an operation may treat
// a slab as one array. An immutable value; equal layouts have equal hashes. Threads: any.
class Layout {
 public:
  static constexpr size_t kAlign = 16;
  static constexpr size_t kMaxDims = 32;

  // Error kInvalidArgument: no blocks; a name that is empty, repeated, not UTF-8, or reserved by
  // files ("__metadata__", "optimizer/..."); a shape with more than kMaxDims axes, a negative
  // length, or too many elements.
  explicit Layout(const std::vector<BlockSpec>& specs);
  // Layout{{"w", {784, 10}}, {"b", {10}}}
  Layout(std::initializer_list<BlockSpec> specs) : Layout(std::vector<BlockSpec>(specs)) {}

  const std::vector<Block>& blocks() const { return blocks_; }
  const Block* find(std::string_view name) const;  // nullptr: no such block
  const Block& at(std::string_view name) const;    // Error kNotFound; the text lists the blocks
  size_t floats() const { return floats_; }        // of a slab, gaps included; above 0
  size_t bytes() const { return floats_ * sizeof(float); }
  size_t parameters() const { return parameters_; }  // of a slab, without gaps

  // FNV-1a of to_json(), over names, shapes and places. For a quick refusal only.
  uint64_t hash() const { return hash_; }

  // {"blocks":[{"name":"w","shape":[784,10],"offset":0}, ...],"floats":7840}
  const std::string& to_json() const { return json_; }
  // Error kInvalidArgument: `text` is not the to_json() of a layout.
  static Layout from_json(std::string_view text);

  // Describes the first block that differs, as in "block 'w' is (784, 10) here and (784, 12)
  // there"; "" if the layouts are equal.
  std::string difference(const Layout& other) const;
  // Error kInvalidArgument with difference(), unless the layouts are equal. `what` names the other
  // layout's owner.
  void require_equal(const Layout& other, const char* operation, const char* what) const;

  friend bool operator==(const Layout& a, const Layout& b) {
    return a.hash_ == b.hash_ && a.json_ == b.json_;
  }

 private:
  std::vector<Block> blocks_;
  std::unordered_map<std::string, size_t> by_name_;
  size_t floats_ = 0;
  size_t parameters_ = 0;
  std::string json_;
  uint64_t hash_ = 0;
};

// Floats [begin, end) of a slab.
struct Range {
  size_t begin = 0;
  size_t end = 0;

  size_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Cuts a slab into one range for each shard: contiguous, in order, none empty, each beginning at a
// multiple of Layout::kAlign. A cut is at the start of a block if one lies within 1/16 of a share
// of the even position; else it goes through a block. Threads: any. Error kInvalidArgument: 0
// shards, more than kMaxShards, or more than the slab has lines of 64 bytes.
inline constexpr size_t kMaxShards = 1024;
std::vector<Range> partition(const Layout& layout, size_t shards);

}  // namespace penstock::train
