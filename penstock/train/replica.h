#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "penstock/train/parameters.h"

namespace penstock::train {

// A group's own copy of weights that several groups of workers change, so that a cache line that
// all of them write to moves between the cores of one group only (a replica per node: Zhang and Ré,
// "DimmWitted", 2014). Now and then it is merged, float by float; `base` is what it was when it was
// merged last:
//
//   common = common == base ? own : common + (own - base) / groups, not beyond common and own
//   own = base = common
//
// So what only one group changes, as most rows of a sparse model between two merges, is as if it
// had been changed in the common weights; what several change lies between what they came to. (The
// sum would go too far: each group has gone all the way to where its data draw a weight.) Those
// updates count by about one over the number of groups: raise the learning rate as much.
//
// Threads: any; see each member. Lives in one process.
class Replica {
 public:
  // `groups` of them, of weights that have seen `updates`: begun. Error kOutOfMemory.
  static std::vector<std::shared_ptr<Replica>> make(const Parameters& common, size_t groups,
                                                    uint64_t updates);

  // What the group's workers read and change, by relaxed loads and stores.
  const Parameters& parameters() const { return own_; }

  // Own weights are the common ones from here on. REQUIRED: no worker of the group is at work.
  void begin();
  // The group's workers, and those of others, may go on meanwhile. Waits for other groups' merges;
  // the common version goes up by the updates that came since the last one.
  void merge();
  // The same, or false at once if another merge is going on.
  bool try_merge();

  // Updates that an optimizer's state of this group's has seen; counts `n` more and returns how
  // many it were.
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
  uint64_t merged_ = 0;  // own_'s version then
  std::atomic<uint64_t> updates_;
};

// When a worker merges its group's replica: after so many of its updates, or, if that is 0, as
// often as takes a tenth of its time. One thread.
class MergePace {
 public:
  explicit MergePace(uint64_t every) : every_(every) {}

  // `n` more updates were made; merges if it is time to, and nobody else does.
  void after(uint64_t n, Replica& replica);

 private:
  const uint64_t every_;
  uint64_t since_ = 0;       // updates
  uint64_t not_before_ = 0;  // ns
};

}  // namespace penstock::train
