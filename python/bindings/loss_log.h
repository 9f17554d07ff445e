#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "penstock/observe/counters.h"
#include "penstock/observe/snapshot.h"

namespace penstock::python {

// What a Loader left out or replaced so far, counted, and listed for reports. With the GIL held.
class LossLog {
 public:
  // `counters` outlive it; nobody else writes those of losses.
  explicit LossLog(ConsumerCounters& counters) : counters_(counters) {}

  void add(LostItem item, bool replaced) {
    (replaced ? counters_.replaced : counters_.skipped).add_single_writer();
    items_.push_back(std::move(item));
  }
  const std::vector<LostItem>& items() const { return items_; }

 private:
  ConsumerCounters& counters_;
  std::vector<LostItem> items_;
};

}  // namespace penstock::python
