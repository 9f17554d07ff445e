#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "penstock/train/slab.h"

namespace penstock::train {

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
