#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "penstock/memory/tensor.h"
#include "penstock/train/layout.h"

namespace penstock::train {

// One aligned piece of memory that has a layout: weights, gradients, a moment of Adam's. A handle:
// copies share the memory, which lives until the last of them, and the last tensor made from one,
// is gone.
//
// A shared slab is a memfd. Other processes map it by its descriptor; children of fork share it
// with no more ado. What a child of fork writes to a private slab is seen by no one else.
//
// Threads: members from any thread; writers of the same floats synchronise.
class Slab {
 public:
  enum class Kind : uint32_t { kPrivate = 1, kShared = 2 };

  // Zeroes. The memory is there when it returns: no page fault and no SIGBUS later.
  // Error kOutOfMemory, kSystem (descriptors).
  static Slab make(Layout layout, Kind kind = Kind::kPrivate);

  // Maps the slab of another process; takes a dup of `fd`, the caller keeps its own. Its pages are
  // sealed against shrinking. Error kInvalidArgument if `fd` is no slab, or one of another layout.
  static Slab open(int fd, Layout layout);

  const Layout& layout() const;
  Kind kind() const;
  int fd() const;  // of a shared slab, which keeps it open; else -1

  // Everything, gaps included: layout().floats() of them, 64-byte aligned.
  std::span<float> values() const;
  // A block; float32, contiguous, a share in the memory. Error kNotFound.
  Tensor at(std::string_view name) const;
  std::span<float> values_of(const Block& block) const {
    return values().subspan(block.offset, block.size);
  }

  void zero() const;
  // Error kInvalidArgument, naming the first block that differs, if the layouts are not equal.
  void copy_from(const Slab& other) const;

  // A count that lies in the slab's memory, so that all who share it see the same; starts at 0.
  // What it counts is the owner's affair: the updates that were applied, for Parameters.
  std::atomic<uint64_t>& version() const;

 private:
  struct Memory;
  explicit Slab(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}

  std::shared_ptr<Memory> memory_;
};

}  // namespace penstock::train
