#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "penstock/base/error.h"
#include "penstock/workers/ticket_ring_layout.h"

namespace penstock {

// The places of a ring's worker threads. A thread that hangs in a call keeps its place until the
// call returns, so its replacement takes another one. For threads of C++ and of Python. Any thread.
class ThreadPlaces {
 public:
  // The places that a ring needs for `workers` threads that may hang.
  static uint32_t needed(uint32_t workers) { return std::min(3 * workers + 8, kMaxWorkers); }

  // The first `workers` places have a thread.
  ThreadPlaces(uint32_t workers, uint32_t places) : places_(places) {
    for (uint32_t place = places; place > workers; --place) free_.push_back(place - 1);
  }

  // A thread hangs: the place of its replacement. Error kTimeout: threads that hang have them all.
  uint32_t take() {
    std::lock_guard lock(mutex_);
    if (free_.empty()) {
      throw Error(Code::kTimeout, "Loader",
                  "all threads, " + std::to_string(places_) + " by now, are stuck in the dataset");
    }
    const uint32_t place = free_.back();
    free_.pop_back();
    return place;
  }
  // The thread in this place has ended.
  void give_back(uint32_t place) {
    std::lock_guard lock(mutex_);
    free_.push_back(place);
  }

 private:
  const uint32_t places_;
  std::mutex mutex_;
  std::vector<uint32_t> free_;
};

}  // namespace penstock
