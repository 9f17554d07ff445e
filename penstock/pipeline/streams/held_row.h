#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "penstock/base/json.h"
#include "penstock/pipeline/element/chunk.h"

namespace penstock {

// A copy of one element, and what was lost on the way to it. A value that keeps its memory for the
// next one; one thread.
class HeldRow {
 public:
  void take(Chunk& in, uint32_t row);  // REQUIRED: it is alive
  // A row of `out`, of views that are good as long as this is left alone; what was lost goes along
  // the first time. Error kInvalidArgument: it is not like `out`'s other rows.
  void give(Chunk& out, uint32_t row);

  // What was lost on the way to it, which does not go along any more.
  std::vector<Failure> take_lost() { return std::exchange(lost_, {}); }

  const SpecRef& spec() const { return spec_; }
  uint64_t bytes() const { return bytes_.size(); }

  // {"spec": its bytes, "shapes": [[lengths] of each leaf], "data": of all leaves}, bytes in
  // base64.
  State save() const;
  // Error kInvalidArgument: it is no such state. It has then not changed.
  void load(const State& state);

  uint64_t ordinal = 0;

 private:
  size_t leaves() const { return spec_ == nullptr ? 0 : spec_->leaves().size(); }
  std::span<const int64_t> shape(size_t leaf) const;
  void place();  // sets at_, of spec_ and dims_, and makes space

  SpecRef spec_;
  std::vector<std::byte> bytes_;
  std::vector<size_t> at_;     // of each leaf
  std::vector<int64_t> dims_;  // of all leaves
  std::vector<Failure> lost_;
  Origin origin_;
};

}  // namespace penstock
