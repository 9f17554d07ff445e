#include "penstock/pipeline/streams/parallel_map.h"

#include <algorithm>

namespace penstock {

// Few enough that little memory is used ahead for large elements, and enough that workers do not
// idle while the stream reader packs a batch.
uint32_t ParallelMaps::queue_of(uint32_t workers) { return std::max(4 * workers, 16u); }

uint64_t ParallelMaps::chunk_bytes() const {
  return budget_.max_bytes() / 2 / std::max<uint64_t>(maps_.size(), 1);
}

std::vector<uint32_t> ParallelMaps::lanes_for(size_t maps, uint32_t workers) {
  if (workers == 0) return {};  // the consumer makes all elements in line
  return std::vector<uint32_t>(maps, 2 * (queue_of(workers) + workers) + 2);
}

}  // namespace penstock
