#pragma once

#include <cstddef>
#include <memory>

#include "penstock/memory/region.h"

namespace penstock {

// For drivers of devices, which read the pages of a region where they were when they were pinned.
// Threads: any, but for attach().

// The region mapped in this process in which an address lies, or nullptr.
std::shared_ptr<Region> region_holding(const void* p);

// Pages below `up_to` are not discarded any more, in any process: they stay allocated. False: the
// region belongs to the parent of this fork, or a process that discards pages does not come to an
// end.
bool keep_pages(Region& region, size_t up_to) noexcept;

// An object that ends with the mapping, before the memory is unmapped; and the one that is there.
// One thread at a time.
void attach(const Region& region, std::shared_ptr<void> attached);
std::shared_ptr<void> attached_to(const Region& region);

}  // namespace penstock
