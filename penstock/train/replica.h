#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "penstock/train/slab.h"

namespace penstock::train {

// A group's own copy of weights that several groups of workers change. Cache lines that all workers
// write then move between the cores of one group only (a replica per node: Zhang and Ré,
// "DimmWitted", 2014). From time to time it is merged, float by float; `base` is the value after
// the last merge:
//
//   common = common == base ? own : common + (own - base) / groups, not beyond common and own
//   own = base = common
//
// A float that only one group changed (most rows of a sparse model between two merges) is treated
// as if it had been changed in the common weights. A float that several groups changed ends between
// their values. (The sum of the changes would go too far: each group has already gone all the way
// to where its data draw the weight.) Those updates count by about one over the number of groups:
// raise the learning rate by that factor.
//
// Threads: any; see each member. Lives in one process.
class Replica {
 public:
  // Makes `groups` replicas of weights that have seen `updates` updates. begin() was called for
  // each. Error kOutOfMemory.
  static std::vector<std::shared_ptr<Replica>> make(const Parameters& common, size_t groups,
                                                    uint64_t updates);

  // The weights that the group's workers read and change, by relaxed loads and stores.
  const Parameters& parameters() const { return own_; }

  // Copies the common weights. REQUIRED: no worker of the group runs.
  void begin();
  // Merges, while workers of all groups may go on. Waits for merges of other groups. The common
  // version goes up by the updates since the last merge.
  void merge();
  // Merges; false immediately if another merge is in progress.
  bool try_merge();

  // Adds `n` to the updates that the group's optimizer state has seen. Returns their number before.
  uint64_t count(uint64_t n) { return updates_.fetch_add(n, std::memory_order_relaxed); }

 private:
  struct Common {
    const Parameters parameters;
    const size_t groups;
    std::mutex merging;
  };

  Replica(std::shared_ptr<Common> common, uint64_t updates);
  void merge_locked();

  const std::shared_ptr<Common> common_;
  const Parameters own_;
  const Slab base_;      // guarded by common_->merging, as is merged_
  uint64_t merged_ = 0;  // own_'s version at the last merge
  std::atomic<uint64_t> updates_;
};

// Decides when a worker merges its group's replica: after `every` updates of the worker. 0: so
// often that merges take a tenth of the worker's time. One thread.
class MergePace {
 public:
  explicit MergePace(uint64_t every) : every_(every) {}

  // Counts `n` updates; merges if it is time and no other merge is in progress.
  void after(uint64_t n, Replica& replica);

 private:
  const uint64_t every_;
  uint64_t since_ = 0;       // updates
  uint64_t not_before_ = 0;  // ns
};

}  // namespace penstock::train
