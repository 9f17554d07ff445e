#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "penstock/train/optimizer.h"
#include "penstock/train/server/gradient.h"
#include "penstock/train/server/shard_memory.h"

namespace penstock::train {

// Computes updates in the memory of a shard, without its ledger: at the shard itself and at its
// follower, whose floats are the same after the same updates. One thread.
class ShardUpdate {
 public:
  struct Part {
    const Gradient* gradient = nullptr;
    double squares = 0;                        // see Shard::Push
    std::span<const float> base_weights = {};  // see Shard::Push
  };

  // `compensation`: see ServerMode.
  ShardUpdate(std::shared_ptr<ShardMemory> memory, Optimizer optimizer, float compensation);

  // Computes the update by one gradient, or by the average of several. Returns the copy that the
  // change must make current. REQUIRED: a ShardMemory::Change; the parts are not empty.
  uint32_t compute(std::span<const Part> parts);
  void committed();  // the change has made that copy current

 private:
  void run(const kernels::Pass& pass, std::span<const Part> parts, std::span<const float> scales,
           std::span<const Range> touched, uint32_t from, uint32_t to);
  void copy_stale_ranges(uint32_t from, uint32_t to);

  const std::shared_ptr<ShardMemory> memory_;
  const Optimizer optimizer_;
  const float compensation_;
  std::vector<float> scratch_;
  // Where the other copy may differ from the current one: the ranges of the last update if this
  // object made it, else everything.
  std::vector<Range> stale_ranges_;
  std::vector<Range> touched_;  // by the computed update; empty: it was made in place
};

}  // namespace penstock::train
