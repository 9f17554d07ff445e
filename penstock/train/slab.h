#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "penstock/memory/tensor.h"
#include "penstock/train/layout.h"

namespace penstock::train {

// One aligned piece of memory with a layout: weights, gradients, or an optimizer's moment. A
// handle: copies share the memory, which lives until the last copy, and the last tensor made from
// one, is destroyed.
//
// A shared slab is a memfd: other processes map it by its descriptor, and forked children share it.
// A private slab is copied by fork.
//
// Threads: members from any thread; writers of the same floats must synchronise.
class Slab {
 public:
  enum class Kind : uint32_t { kPrivate = 1, kShared = 2 };

  // Zeroes. The pages are allocated on return: no page fault or SIGBUS later. Error kOutOfMemory,
  // kSystem (descriptors).
  static Slab make(Layout layout, Kind kind = Kind::kPrivate);

  // Maps the slab of another process; duplicates `fd`, and seals the file against shrinking. Error
  // kInvalidArgument: `fd` is not a slab, or has another layout.
  static Slab open(int fd, Layout layout);

  // Floats of this slab from `offset` on as a private slab with a layout and a version of its own:
  // writes to either are seen in both. Keeps this slab's memory. Error kInvalidArgument: a shared
  // slab, an offset that is no multiple of Layout::kAlign, or an end beyond this slab's.
  Slab window(Layout layout, size_t offset) const;

  const Layout& layout() const;
  Kind kind() const;
  int fd() const;  // of a shared slab, which keeps it open; else -1

  // All floats, gaps included: layout().floats() of them, 64-byte aligned.
  std::span<float> values() const;
  // A block: float32, contiguous; keeps the memory. Error kNotFound.
  Tensor at(std::string_view name) const;
  std::span<float> values_of(const Block& block) const {
    return values().subspan(block.offset, block.size);
  }
  // Whether writes to one may be seen in the other: their floats overlap, or both map the same
  // shared slab. Error kSystem.
  bool shares_memory_with(const Slab& other) const;

  void zero() const;
  // Error kInvalidArgument: the layouts differ; the text names the first block that does.
  void copy_from(const Slab& other) const;

  // A counter in the slab's memory, shared by all users of the slab; starts at 0. For Parameters:
  // the number of applied updates.
  std::atomic<uint64_t>& version() const;

 private:
  struct Memory;
  explicit Slab(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}

  std::shared_ptr<Memory> memory_;
};

// Weights: a slab and a version that counts the applied updates. A handle: copies share the memory.
// Threads: as Slab.
class Parameters {
 public:
  // Zeroes, version 0. Errors of Layout and Slab::make.
  explicit Parameters(Layout layout, Slab::Kind kind = Slab::Kind::kPrivate)
      : slab_(Slab::make(std::move(layout), kind)) {}
  // The weights and version of an existing slab.
  explicit Parameters(Slab slab) : slab_(std::move(slab)) {}

  const Slab& slab() const { return slab_; }
  const Layout& layout() const { return slab_.layout(); }
  Tensor at(std::string_view name) const { return slab_.at(name); }  // Error kNotFound

  // A slab for gradients: zeroes, of the same layout. Errors of Slab::make.
  Slab gradients(Slab::Kind kind = Slab::Kind::kPrivate) const {
    return Slab::make(layout(), kind);
  }

  // A thread that reads a version sees all weights written before that version was set.
  uint64_t version() const { return slab_.version().load(std::memory_order_acquire); }
  void set_version(uint64_t version) const {
    slab_.version().store(version, std::memory_order_release);
  }
  // Counts one more update; returns the new version.
  uint64_t advance() const { return slab_.version().fetch_add(1, std::memory_order_acq_rel) + 1; }

 private:
  Slab slab_;
};

}  // namespace penstock::train
