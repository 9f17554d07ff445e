#include "penstock/pipeline/streams/parallel_map.h"

#include <algorithm>

namespace penstock {

// Few enough that little memory is used ahead for large elements, and enough that workers do not
// idle while the stream reader packs a batch.
uint32_t ParallelMaps::queue_of(uint32_t workers) { return std::max(4 * workers, 16u); }

uint64_t ParallelMaps::unknown_bytes() const {
  constexpr uint64_t kMin = 64 << 10, kMax = 4 << 20;
  return std::max(element_bytes_, std::clamp(budget_.total() / 16, kMin, kMax));
}

void ParallelMaps::on_grant() {
  granted_.store(true, std::memory_order_release);
  if (wake_) wake_();
}

void ParallelMaps::use_grants() {
  if (reading_ != 0) return;
  const Reading reading(*this);
  while (granted_.exchange(false, std::memory_order_acq_rel)) {
    for (size_t i = 0; i < readers_.size(); ++i) readers_[i]->use_grant();
  }
}

std::vector<uint32_t> ParallelMaps::lanes_for(size_t maps, uint32_t workers) {
  if (workers == 0) return {};  // the consumer makes all elements in line
  return std::vector<uint32_t>(maps, 2 * (queue_of(workers) + workers) + 2);
}

}  // namespace penstock
