#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "penstock/train/slab.h"

namespace penstock::train {

// Weights: a slab, and a version that counts the updates applied to it. A handle, as Slab is:
// copies are the same parameters. Threads: as Slab.
class Parameters {
 public:
  // Zeroes, version 0. Errors as of Layout and Slab::make.
  explicit Parameters(Layout layout, Slab::Kind kind = Slab::Kind::kPrivate)
      : slab_(Slab::make(std::move(layout), kind)) {}
  // Those in a slab that is there already, with its version.
  explicit Parameters(Slab slab) : slab_(std::move(slab)) {}

  const Slab& slab() const { return slab_; }
  const Layout& layout() const { return slab_.layout(); }
  Tensor at(std::string_view name) const { return slab_.at(name); }  // Error kNotFound

  // Room for gradients: zeroes, of the same layout. Errors as of Slab::make.
  Slab gradients(Slab::Kind kind = Slab::Kind::kPrivate) const {
    return Slab::make(layout(), kind);
  }

  // Whoever sees a version with `version` sees what was written before it was set.
  uint64_t version() const { return slab_.version().load(std::memory_order_acquire); }
  void set_version(uint64_t version) const {
    slab_.version().store(version, std::memory_order_release);
  }
  // One more update was applied; returns the version that now is.
  uint64_t advance() const { return slab_.version().fetch_add(1, std::memory_order_acq_rel) + 1; }

 private:
  Slab slab_;
};

}  // namespace penstock::train
