#include "penstock/pipeline/streams/section.h"

#include <algorithm>

namespace penstock {

// Few enough that little is made ahead where elements are large, and enough that workers do not
// run dry while the cursor packs a batch.
uint32_t Sections::queue_of(uint32_t workers) { return std::max(4 * workers, 16u); }

uint64_t Sections::chunk_bytes() const {
  return budget_.max_bytes() / 2 / std::max<uint64_t>(plan_->sections().size(), 1);
}

std::vector<uint32_t> Sections::lanes_for(const Plan& plan, uint32_t workers) {
  if (workers == 0) return {};  // the consumer makes everything himself
  return std::vector<uint32_t>(plan.sections().size(), 2 * (queue_of(workers) + workers) + 2);
}

}  // namespace penstock
