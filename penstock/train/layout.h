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

// What the user names: an array of weights.
struct BlockSpec {
  std::string name;
  Shape shape;  // () is one float
};

// The same with its place.
struct Block {
  std::string name;
  Shape shape;
  size_t offset = 0;  // in floats from the slab's first
  size_t size = 0;    // in floats
};

// Where the blocks of a slab lie: one after the other as they were named, each at a multiple of
// kAlign floats (64 bytes). What lies between them is zero and stays zero, so that whoever works on
// a slab may work on all of it in one go. A value that does not change; equal layouts have equal
// hashes. Any thread.
class Layout {
 public:
  static constexpr size_t kAlign = 16;
  static constexpr size_t kMaxDims = 32;

  // Error kInvalidArgument: no block at all; a name that is empty, not UTF-8, there twice, or one
  // of those that files have uses of their own for ("__metadata__", "optimizer/..."); a shape of
  // more than kMaxDims axes, with a negative length, or too large.
  explicit Layout(const std::vector<BlockSpec>& specs);
  // Layout{{"w", {784, 10}}, {"b", {10}}}
  Layout(std::initializer_list<BlockSpec> specs) : Layout(std::vector<BlockSpec>(specs)) {}

  const std::vector<Block>& blocks() const { return blocks_; }
  const Block* find(std::string_view name) const;  // nullptr: there is none
  const Block& at(std::string_view name) const;    // Error kNotFound, with the names there are
  size_t floats() const { return floats_; }        // of a slab, gaps included; not 0
  size_t bytes() const { return floats_ * sizeof(float); }
  size_t parameters() const { return parameters_; }  // of a slab, gaps left out

  // 64 bits over names, shapes and places: FNV-1a of to_json(). For a quick refusal only.
  uint64_t hash() const { return hash_; }

  // {"blocks":[{"name":"w","shape":[784,10],"offset":0}, ...],"floats":7840}
  const std::string& to_json() const { return json_; }
  // Error kInvalidArgument if it is not what to_json() says of some layout.
  static Layout from_json(std::string_view text);

  // Names the first block that the other has not, has elsewhere, or has of another shape, as in
  // "block 'w' is (784, 10) here and (784, 12) there"; "" if they are equal.
  std::string difference(const Layout& other) const;
  // Error kInvalidArgument, with that, if they are not. `what` the other is, for the message.
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

}  // namespace penstock::train
