#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace penstock {

struct DepthSample {
  uint64_t at_ns = 0;
  uint32_t depth = 0;  // batches that were ready
};

// How many batches were ready, over the whole run, in bounded memory: when it is full, every second
// sample goes and samples are taken half as often from then on.
// add: one thread. read: any thread.
class DepthHistory {
 public:
  static constexpr size_t kCapacity = 1024;

  void add(uint64_t now_ns, uint32_t depth) {
    if (now_ns >= next_ns_) {
      keep(now_ns, depth);
    }
  }
  std::vector<DepthSample> read() const;

 private:
  void keep(uint64_t now_ns, uint32_t depth);

  mutable std::mutex mutex_;  // of samples_; next_ns_ and interval_ns_ are the writer's own
  std::vector<DepthSample> samples_;
  uint64_t next_ns_ = 0;
  uint64_t interval_ns_ = 100'000;
};

}  // namespace penstock
