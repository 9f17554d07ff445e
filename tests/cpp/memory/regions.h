#pragma once

#include <cstddef>
#include <memory>

#include "penstock/memory/region.h"

namespace penstock::testing {

constexpr size_t kMiB = size_t{1} << 20;

// Shared memory of its own.
inline std::shared_ptr<Region> region_of(size_t bytes) {
  return Region::create(Region::Kind::kShared, bytes);
}

}  // namespace penstock::testing
