#include "penstock/pipeline/scheduler/granules.h"

#include <algorithm>

namespace penstock {

uint32_t granules_for(const BatchDivision& of) {
  if (of.workers < 2 || of.rows < 2 || of.most < 2) return 1;
  uint64_t parts = 1;
  if (of.window < of.workers) {
    parts = (uint64_t{2} * of.workers + of.window - 1) / of.window;
  } else if (of.first) {
    parts = of.workers;
  }
  if (of.row_ns != 0) parts = std::min(parts, of.rows * of.row_ns / kGranuleWorthNs);
  parts = std::clamp<uint64_t>(parts, 1, std::min(of.rows, of.most));
  const uint64_t share = (of.rows + parts - 1) / parts;
  return static_cast<uint32_t>((of.rows + share - 1) / share);
}

uint32_t max_granules(uint32_t workers, uint64_t rows) {
  if (workers < 2) return 1;
  return static_cast<uint32_t>(std::min({uint64_t{2} * workers, rows, uint64_t{kMaxGranules}}));
}

}  // namespace penstock
