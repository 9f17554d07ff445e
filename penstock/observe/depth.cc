#include "penstock/observe/depth.h"

namespace penstock {

void DepthHistory::keep(uint64_t now_ns, uint32_t depth) {
  std::lock_guard lock(mutex_);
  if (samples_.size() == kCapacity) {
    for (size_t i = 0; i < kCapacity / 2; ++i) {
      samples_[i] = samples_[2 * i];
    }
    samples_.resize(kCapacity / 2);
    interval_ns_ *= 2;
  }
  samples_.push_back({now_ns, depth});
  next_ns_ = now_ns + interval_ns_;
}

std::vector<DepthSample> DepthHistory::read() const {
  std::lock_guard lock(mutex_);
  return samples_;
}

}  // namespace penstock
